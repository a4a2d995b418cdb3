"""The scripts and systemd services of a site, from the files in `templates/`.

There, `# include NAME` stands for another of these files and `@NAME@` for a value. What differs between devices is in
`sofed.env` beside them, so all devices get the same files. The scripts read that file unless its variables are already
in the environment, as in a test.

Flower unpacks the app once into FLWR_HOME/apps and never checks that copy again (`flwr.cli.install`). After a full disk
or a power cut every later round would fail with an ImportError. The bundle itself comes with every task, checked by its
hash, so the copies can be deleted at any time: at every start, and on a device after every failed task.

The server runs in the site's directory, as the user who provisioned it; a device is installed below /etc by
`install.sh`. Each service may do what its program needs and nothing else: `systemd-analyze security` shows what
remains. A refused device tries again after 5 s and its own start of about 3 s; with 15 s it could take 78 s to return.
"""

import re
from collections.abc import Mapping
from importlib.resources import files

WARNING = 'echo "WARNING: provisioned with --insecure: no encryption, no authentication; anybody can take part" >&2'
CHECK = '"$SOFED_BIN/python" -P -m sofed_flwr.fleet.provision.start {} "$here"'
TRUST = {
    "server": '--enable-supernode-auth \\\n    --ssl-ca-certfile "$here/ca.crt" '
    '--ssl-certfile "$here/server.crt" --ssl-keyfile "$here/server.key"',
    "device": '--root-certificates "$here/ca.crt" --auth-supernode-private-key "$here/key"',
}


def start_script(role: str, insecure: bool) -> bytes:
    """`start.sh` of the server or of a device."""
    check, trust = (WARNING, "--insecure") if insecure else (CHECK.format(role), TRUST[role])
    return rendered(f"start_{role}.sh", {"CHECK": check, "TRUST": trust})


def superlink_unit(server: str, user: str) -> bytes:
    """`sofed-superlink.service`; in a unit a percent sign begins a specifier."""
    values = {"SERVER": server.replace("%", "%%"), "USER": user.replace("%", "%%")}
    return rendered("sofed-superlink.service", values)


def rendered(name: str, values: Mapping[str, str] | None = None) -> bytes:
    """A file of a site; a value that looks like a placeholder stays as it is."""
    return re.sub("@([A-Z]+)@", lambda found: (values or {})[found[1]], _template(name)).encode()


def _template(name: str) -> str:
    text = files("sofed_flwr.fleet.provision").joinpath("templates", name).read_text(encoding="utf-8")
    return re.sub(r"(?m)^# include (\S+)\n", lambda part: _template(part[1]), text)
