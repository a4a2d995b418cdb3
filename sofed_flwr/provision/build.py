"""`sofed provision`: make a site, or complete and extend one.

Scripts, units and Flower's connection are written at every run. Keys, the authority's certificate and `sofed.env`,
which is its owner's to edit, are written once. The server's certificate is issued anew, for the same key and by the
same authority, when a host is missing in it or its end is near; devices notice nothing.
"""

import getpass
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path

from sofed_flwr.component import ConfigError
from sofed_flwr.provision import certificates, scripts, units
from sofed_flwr.provision.files import PROGRAM, PUBLIC, SECRET, folder, once, settings, write
from sofed_flwr.provision.site import CONNECTION, Site

LOOPBACK = ["localhost", "127.0.0.1"]
"""Names the server calls itself by: its own executor connects over TLS too."""
NO_COMMIT = b"# Private keys are in here.\n*\n"
DEVICE_SETTINGS = {
    "SOFED_BIN": "/opt/sofed/bin",
    "SOFED_STATE": "/var/lib/sofed",
    "SOFED_SPOOL": "/var/spool/sofed",
    "SOFED_COLLECT": "--camera 0",
    "SOFED_PORT": "9094",
}
DEVICE_NOTE = b"# Here devices differ, and here alone. Threads of training, by default one per core: SOFED_THREADS=3\n"


def provision(
    directory: Path,
    hosts: Sequence[str] = (),
    devices: int = 0,
    *,
    port: int | None = None,
    control_port: int | None = None,
    bind: str | None = None,
    insecure: bool = False,
    say: Callable[[str], None] = print,
) -> Site:
    """Make or extend the site in `directory`: `hosts` are the server's names, and the first is what devices call.

    Ports and the address to listen on (`bind`) are the first run's to choose: 9092, 8000, all addresses if it does not.
    """
    site = Site(directory.resolve())
    _refuse_bad_hosts(site, hosts)
    _refuse_change(site, insecure, {"port": port, "control_port": control_port, "bind": bind})
    folder(site.directory)
    once(site.directory / ".gitignore", lambda: NO_COMMIT, PUBLIC)
    folder(site.server)
    if not insecure:
        _certify(site, hosts, say)
    _write_settings(site, hosts, port or 9092, control_port or 8000, bind or "0.0.0.0")
    _write_server(site, insecure)
    if 0 < devices < len(site.devices):
        say(f"{site.directory} has {len(site.devices)} devices: none was added, none removed")
    for number in sorted({*site.devices, *range(devices)}):
        _write_device(site, number, insecure)
    return site


def steps(site: Site) -> str:
    """What to do next, in the order in which it works."""
    here, name = site.directory, f"device-{site.devices[0]}" if site.devices else "device-K"
    lines = [
        f"{here} holds a server and {len(site.devices)} devices. Next:",
        f"  server     {here}/server/start.sh",
        f"             (or: sudo systemctl enable --now {here}/server/sofed-superlink.service)",
        f"  register   sofed provision {here} --register",
        f"  copy       scp -pr {here}/{name} DEVICE:    (each device its own, then delete the key here)",
        f"  device     sudo {name}/install.sh    (by hand: {name}/start.sh)",
        f"  train      sofed run --fleet {here} rounds=20 clients={len(site.devices)}",
    ]
    return "\n".join(line for line in lines if not (site.insecure and "--register" in line))


def _refuse_bad_hosts(site: Site, hosts: Sequence[str]) -> None:
    if not hosts and not site.settings:
        raise ConfigError("--host is missing: the name or address by which devices reach the server")
    for host in hosts:
        if ":" not in host and not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host):
            raise ConfigError(f"--host {host!r} is neither a host name nor an address")
        if ":" in host and not _is_address(host):
            raise ConfigError(f"--host {host!r} is not an IPv6 address; a port is given by --port")


def _refuse_change(site: Site, insecure: bool, given: Mapping[str, object]) -> None:
    """What devices were told cannot be taken back by writing something else here."""
    if site.insecure and not insecure:
        raise ConfigError(f"{site.directory} was made with --insecure: say so again, or take another directory")
    if site.secure and insecure:
        raise ConfigError(f"{site.directory} has keys and certificates: --insecure needs another directory")
    for name, value in given.items():
        if site.settings and value is not None and str(value) != site.listening[name]:
            option, place = name.replace("_", "-"), site.server / "sofed.env"
            raise ConfigError(
                f"--{option} {value}: {place} says {site.listening[name]}; edit it there and on the devices"
            )


def _certify(site: Site, hosts: Sequence[str], say: Callable[[str], None]) -> None:
    key, certificate = folder(site.authority) / "ca.key", site.authority / "ca.crt"
    if not certificate.exists():
        once(key, certificates.new_key, SECRET)
        write(certificate, certificates.authority_certificate(key.read_bytes()), PUBLIC)
    write(site.server / "ca.crt", certificate.read_bytes(), PUBLIC)
    own = once(site.server / "server.key", certificates.new_key, SECRET)
    place = site.server / "server.crt"
    known = certificates.certificate_hosts(place.read_bytes()) if place.exists() else []
    wanted = list(dict.fromkeys([*known, *hosts, *LOOPBACK]))
    if wanted == known and certificates.days_left(place.read_bytes()) > certificates.RENEW_DAYS:
        return
    if not key.exists():
        raise ConfigError(f"{key} is missing, and without it no certificate can be made for {', '.join(wanted)}")
    write(place, certificates.server_certificate(own, key.read_bytes(), wanted), PUBLIC)
    if known:
        say(f"new server certificate, same authority, for {', '.join(wanted)}: restart the server")


def _write_settings(site: Site, hosts: Sequence[str], port: int, control_port: int, bind: str) -> None:
    if not site.settings:
        values = {
            "SOFED_BIN": str(Path(sys.executable).parent),
            "SOFED_SUPERLINK": f"{_bracketed(hosts[0])}:{port}",
            "SOFED_FLEET": f"{_bracketed(bind)}:{port}",
            "SOFED_CONTROL_PORT": str(control_port),
        }
        write(site.server / "sofed.env", settings(values), PUBLIC)


def _write_server(site: Site, insecure: bool) -> None:
    write(site.server / "start.sh", scripts.start_server(insecure), PROGRAM)
    unit = units.superlink_unit(str(site.server), getpass.getuser())
    write(site.server / "sofed-superlink.service", unit, PUBLIC)
    folder(site.server / "keys")
    trust = "insecure = true" if insecure else f"root-certificates = {json.dumps(str(site.server / 'ca.crt'))}"
    address = f'address = "127.0.0.1:{site.listening["control_port"]}"'
    connection = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n{address}\n{trust}\n'
    write(folder(site.server / "flower") / "config.toml", connection.encode(), PUBLIC)


def _write_device(site: Site, number: int, insecure: bool) -> None:
    place = site.device(number)
    if site.public_key(number).exists() and not place.exists():
        return  # it was handed over and taken away here, as a private key should be
    folder(place)
    values = {"SOFED_DEVICE": str(number), "SOFED_SUPERLINK": site.settings["SOFED_SUPERLINK"], **DEVICE_SETTINGS}
    once(place / "sofed.env", lambda: DEVICE_NOTE + settings(values), PUBLIC)
    write(place / "start.sh", scripts.start_device(insecure), PROGRAM)
    write(place / "collect.sh", scripts.COLLECT.encode(), PROGRAM)
    write(place / "install.sh", scripts.INSTALL.encode(), PROGRAM)
    write(place / "sofed-supernode.service", units.SUPERNODE_UNIT.encode(), PUBLIC)
    write(place / "sofed-collect.service", units.COLLECT_UNIT.encode(), PUBLIC)
    if not insecure:
        write(place / "ca.crt", (site.server / "ca.crt").read_bytes(), PUBLIC)
        _write_keys(site, number)


def _write_keys(site: Site, number: int) -> None:
    """The private key first and the server's copy of the public one last: that it exists means that all is done."""
    place, server_copy = site.device(number), site.public_key(number)
    if not server_copy.exists():
        private = once(place / "key", certificates.new_device_key, SECRET)
        public = certificates.device_public_key(private, place.name)
        write(place / "key.pub", public, PUBLIC)
        write(server_copy, public, PUBLIC)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_address(host: str) -> bool:
    try:
        return bool(ip_address(host))
    except ValueError:
        return False
