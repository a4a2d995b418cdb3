"""The shell scripts of a site: start the server, start a device, fill its spool, install it.

What differs between devices is in `sofed.env` beside them, so the scripts are the same everywhere. They read that file
unless its variables are already in the environment, as in a test.

Flower unpacks the app once into FLWR_HOME/apps and never checks that copy again (`flwr.cli.install`). After a full disk
or a power cut every later round would fail with an ImportError. The bundle itself comes with every task, checked by its
hash, so the copies can be deleted at any time: at every start, and on a device after every failed task.
"""

from string import Template

ALONE = """\
exec 9<"$FLWR_HOME"
! command -v flock >/dev/null || flock -n 9 || { echo "sofed: already running on $FLWR_HOME" >&2; exit 1; }
# A copy of the app may be torn, and Flower makes another; a read-only disk keeps its copy and goes on.
rm -rf "$FLWR_HOME/apps" || echo "sofed: $FLWR_HOME/apps cannot be removed" >&2
"""
CHECKED = '"$SOFED_BIN/python" -P -m sofed_flwr.fleet.provision.start {} "$here"\n'

INSECURE = """\
echo "WARNING: provisioned with --insecure: no encryption, no authentication; anybody can take part" >&2
"""

START_SERVER = Template("""\
#!/bin/sh
# The federation's server, Flower's SuperLink. Devices reach SOFED_FLEET; the other port controls the federation and can
# run code on every device, so it listens on loopback only and serves its own user only.
set -eu
umask 077
here=$$(cd "$$(dirname "$$0")" && pwd)
[ -n "$${SOFED_FLEET:-}" ] || { set -a; . "$$here/sofed.env"; set +a; }
state=$${SOFED_STATE:-$$here/state}
mkdir -p "$$state"
export PATH="$$SOFED_BIN:$$PATH" FLWR_HOME="$$here/flower"  # Flower's commands start each other by name
${alone}export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export no_proxy="127.0.0.1,localhost,$${no_proxy:-}"
${warning}exec "$$SOFED_BIN/python" -P -m sofed_flwr.launch.private_superlink \\
    --host 127.0.0.1 --port "$$SOFED_CONTROL_PORT" \\
    --fleet-api-address "$$SOFED_FLEET" --database "$$state/superlink.db" --disable-runtime-dependency-installation \\
    ${trust}
""")
SERVER_TRUST = """--enable-supernode-auth \\
    --ssl-ca-certfile "$here/ca.crt" --ssl-certfile "$here/server.crt" --ssl-keyfile "$here/server.key\""""

START_DEVICE = Template("""\
#!/bin/sh
# One device of the federation, Flower's SuperNode. It connects to the server; ports here are on loopback only.
set -eu
umask 077
here=$$(cd "$$(dirname "$$0")" && pwd)
[ -n "$${SOFED_DEVICE:-}" ] || { set -a; . "$$here/sofed.env"; set +a; }
mkdir -p "$$SOFED_STATE/flower"
source=$${SOFED_SOURCE:-spool:$$SOFED_SPOOL}
more="threads=$${SOFED_THREADS:-$$(nproc)} $${SOFED_NODE_CONFIG:-}"
# Flower's commands start each other by name; $$here/bin has a wrapper of one of them.
export PATH="$$here/bin:$$SOFED_BIN:$$PATH" FLWR_HOME="$$SOFED_STATE/flower"
${alone}export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export no_proxy="127.0.0.1,localhost,$${no_proxy:-}"
${warning}exec flower-supernode --superlink "$$SOFED_SUPERLINK" --host 127.0.0.1 --port "$$SOFED_PORT" \\
    --node-config "device-id=$$SOFED_DEVICE source='$$source' state-dir='$$SOFED_STATE' $$more" \\
    ${trust}
""")
DEVICE_TRUST = '--root-certificates "$here/ca.crt" --auth-supernode-private-key "$here/key"'

CLIENTAPP = """\
#!/bin/sh
# Flower's executor finds this instead of its flwr-clientapp and so starts it through here. If it fails, the copy of the
# app is deleted, because it may be torn (a full disk, a kill while it was made); the next task brings the app again.
"$SOFED_BIN/flwr-clientapp" "$@" && exit 0
code=$?
rm -rf "$FLWR_HOME/apps"
exit "$code"
"""

COLLECT = """\
#!/bin/sh
# Fills the spool by `sofed collect`, whose options SOFED_COLLECT holds, quoted as in a shell.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
[ -n "${SOFED_DEVICE:-}" ] || { set -a; . "$here/sofed.env"; set +a; }
eval "set -- $SOFED_COLLECT"
exec "$SOFED_BIN/sofed" collect "$SOFED_SPOOL" "$@"
"""

INSTALL = """\
#!/bin/sh
# Run as root on the device, in the folder that was copied to it: a user, its directories, the services. Running it
# again updates scripts and units and keeps the device's settings and state.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
id sofed >/dev/null 2>&1 || useradd --system --user-group --no-create-home --shell /usr/sbin/nologin sofed
for group in video render; do
    ! getent group "$group" >/dev/null || usermod --append --groups "$group" sofed
done
install -d -m 0755 /etc/sofed
[ -e /etc/sofed/sofed.env ] || install -m 0644 "$here/sofed.env" /etc/sofed/sofed.env
install -m 0755 "$here/start.sh" "$here/collect.sh" /etc/sofed/
install -D -m 0755 "$here/bin/flwr-clientapp" /etc/sofed/bin/flwr-clientapp
[ ! -e "$here/key" ] || install -m 0600 -o sofed -g sofed "$here/key" /etc/sofed/key
[ ! -e "$here/ca.crt" ] || install -m 0644 "$here/ca.crt" /etc/sofed/ca.crt
. /etc/sofed/sofed.env
case "$SOFED_STATE$SOFED_SPOOL" in
    *[!A-Za-z0-9/._-]*) echo "sofed: SOFED_STATE and SOFED_SPOOL: letters, digits and / . _ - only" >&2; exit 2 ;;
esac
install -d -m 0700 -o sofed -g sofed "$SOFED_STATE"
install -d -m 0750 -o sofed -g sofed "$SOFED_SPOOL"
install -m 0644 "$here/sofed-supernode.service" "$here/sofed-collect.service" /etc/systemd/system/
for unit in sofed-supernode sofed-collect; do  # everything else is read-only for them
    install -d -m 0755 "/etc/systemd/system/$unit.service.d"
    printf '[Service]\\nReadWritePaths=-%s -%s\\n' "$SOFED_STATE" "$SOFED_SPOOL" |
        install -m 0644 /dev/stdin "/etc/systemd/system/$unit.service.d/paths.conf"
done
systemctl daemon-reload
# A board without a battery clock starts in the past, and its signatures are refused; this makes time-sync.target wait.
systemctl enable systemd-time-wait-sync.service ||
    echo "no systemd-timesyncd: let your NTP service provide time-sync.target"
systemctl enable sofed-supernode.service
systemctl restart sofed-supernode.service
echo "running; see: journalctl -fu sofed-supernode. With a camera also: systemctl enable --now sofed-collect"
"""


def start_server(insecure: bool) -> bytes:
    """`start.sh` of the server."""
    return _start(START_SERVER, SERVER_TRUST, "server", insecure)


def start_device(insecure: bool) -> bytes:
    """`start.sh` of a device."""
    return _start(START_DEVICE, DEVICE_TRUST, "device", insecure)


def _start(template: Template, trust: str, role: str, insecure: bool) -> bytes:
    warning, trust = (INSECURE, "--insecure") if insecure else (CHECKED.format(role), trust)
    return template.substitute(warning=warning, trust=trust, alone=ALONE).encode()
