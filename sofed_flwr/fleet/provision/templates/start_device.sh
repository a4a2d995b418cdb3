#!/bin/sh
# One device of the federation, Flower's SuperNode. It connects to the server; ports here are on loopback only.
set -eu
umask 077
here=$(cd "$(dirname "$0")" && pwd)
[ -n "${SOFED_DEVICE:-}" ] || { set -a; . "$here/sofed.env"; set +a; }
mkdir -p "$SOFED_STATE/flower"
source=${SOFED_SOURCE:-spool:$SOFED_SPOOL}
more="threads=${SOFED_THREADS:-$(nproc)} ${SOFED_NODE_CONFIG:-}"
# Flower's commands start each other by name; $here/bin has a wrapper of one of them.
export PATH="$here/bin:$SOFED_BIN:$PATH" FLWR_HOME="$SOFED_STATE/flower"
# include one_start.sh
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export no_proxy="127.0.0.1,localhost,${no_proxy:-}"
@CHECK@
exec flower-supernode --superlink "$SOFED_SUPERLINK" --host 127.0.0.1 --port "$SOFED_PORT" \
    --node-config "device-id=$SOFED_DEVICE source='$source' state-dir='$SOFED_STATE' $more" \
    @TRUST@
