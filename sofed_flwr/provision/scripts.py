"""The shell scripts of a site: start the server, start a device, fill its spool, install it.

What differs between devices stands in `sofed.env` beside them, so the scripts are the same everywhere. They read that
file unless their environment already has its variables: systemd has read it then, and a test gives its own.
"""

from string import Template

INSECURE = """\
echo "WARNING: provisioned with --insecure: no encryption, no authentication; whoever reaches the port takes part" >&2
"""

START_SERVER = Template("""\
#!/bin/sh
# The federation's server, Flower's SuperLink. Devices reach SOFED_FLEET; the other port steers the federation, runs
# code on every device, has no login, and therefore listens on loopback only.
set -eu
umask 077
here=$$(cd "$$(dirname "$$0")" && pwd)
[ -n "$${SOFED_FLEET:-}" ] || { set -a; . "$$here/sofed.env"; set +a; }
state=$${SOFED_STATE:-$$here/state}
mkdir -p "$$state"
export PATH="$$SOFED_BIN:$$PATH" FLWR_HOME="$$here/flower"  # Flower's commands start each other by name
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export no_proxy="127.0.0.1,localhost,$${no_proxy:-}"
${warning}exec flower-superlink --host 127.0.0.1 --port "$$SOFED_CONTROL_PORT" --fleet-api-address "$$SOFED_FLEET" \\
    --database "$$state/superlink.db" --disable-runtime-dependency-installation \\
    ${trust}
""")
SERVER_TRUST = """--enable-supernode-auth \\
    --ssl-ca-certfile "$here/ca.crt" --ssl-certfile "$here/server.crt" --ssl-keyfile "$here/server.key\""""

START_DEVICE = Template("""\
#!/bin/sh
# One device of the federation, Flower's SuperNode. It calls the server; nothing listens here but on loopback.
set -eu
umask 077
here=$$(cd "$$(dirname "$$0")" && pwd)
[ -n "$${SOFED_DEVICE:-}" ] || { set -a; . "$$here/sofed.env"; set +a; }
mkdir -p "$$SOFED_STATE/flower"
threads=$${SOFED_THREADS:-$$(nproc)}
export PATH="$$SOFED_BIN:$$PATH" FLWR_HOME="$$SOFED_STATE/flower"  # Flower's commands start each other by name
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export no_proxy="127.0.0.1,localhost,$${no_proxy:-}"
${warning}exec flower-supernode --superlink "$$SOFED_SUPERLINK" --host 127.0.0.1 --port "$$SOFED_PORT" \\
    --node-config "device-id=$$SOFED_DEVICE source='$$SOFED_SPOOL' state-dir='$$SOFED_STATE' threads=$$threads" \\
    ${trust}
""")
DEVICE_TRUST = '--root-certificates "$here/ca.crt" --auth-supernode-private-key "$here/key"'

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
! getent group video >/dev/null || usermod --append --groups video sofed
install -d -m 0755 /etc/sofed
[ -e /etc/sofed/sofed.env ] || install -m 0644 "$here/sofed.env" /etc/sofed/sofed.env
install -m 0755 "$here/start.sh" "$here/collect.sh" /etc/sofed/
[ ! -e "$here/key" ] || install -m 0600 -o sofed -g sofed "$here/key" /etc/sofed/key
[ ! -e "$here/ca.crt" ] || install -m 0644 "$here/ca.crt" /etc/sofed/ca.crt
. /etc/sofed/sofed.env
install -d -m 0700 -o sofed -g sofed "$SOFED_STATE"
install -d -m 0750 -o sofed -g sofed "$SOFED_SPOOL"
install -m 0644 "$here/sofed-supernode.service" "$here/sofed-collect.service" /etc/systemd/system/
systemctl daemon-reload
# A board without a battery clock starts in the past, and its signatures are refused; this makes time-sync.target wait.
systemctl enable systemd-time-wait-sync.service ||
    echo "no systemd-timesyncd: let your NTP service guard time-sync.target"
systemctl enable sofed-supernode.service
systemctl restart sofed-supernode.service
echo "running; see: journalctl -fu sofed-supernode. With a camera also: systemctl enable --now sofed-collect"
"""


def start_server(insecure: bool) -> bytes:
    """`start.sh` of the server."""
    return _start(START_SERVER, SERVER_TRUST, insecure)


def start_device(insecure: bool) -> bytes:
    """`start.sh` of a device."""
    return _start(START_DEVICE, DEVICE_TRUST, insecure)


def _start(template: Template, trust: str, insecure: bool) -> bytes:
    warning, trust = (INSECURE, "--insecure") if insecure else ("", trust)
    return template.substitute(warning=warning, trust=trust).encode()
