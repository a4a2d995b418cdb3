#!/bin/sh
# The federation's server, Flower's SuperLink. Devices reach SOFED_FLEET; the other port controls the federation and can
# run code on every device, so it listens on loopback only and serves its own user only.
set -eu
umask 077
here=$(cd "$(dirname "$0")" && pwd)
[ -n "${SOFED_FLEET:-}" ] || { set -a; . "$here/sofed.env"; set +a; }
state=${SOFED_STATE:-$here/state}
mkdir -p "$state"
export PATH="$SOFED_BIN:$PATH" FLWR_HOME="$here/flower"  # Flower's commands start each other by name
# include one_start.sh
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export no_proxy="127.0.0.1,localhost,${no_proxy:-}"
@CHECK@
exec "$SOFED_BIN/python" -P -m sofed_flwr.launch.private_superlink \
    --host 127.0.0.1 --port "$SOFED_CONTROL_PORT" \
    --fleet-api-address "$SOFED_FLEET" --database "$state/superlink.db" --disable-runtime-dependency-installation \
    @TRUST@
