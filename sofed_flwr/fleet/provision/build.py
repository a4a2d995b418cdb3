"""`sofed provision`: make a site, or complete and extend one.

Scripts, units and Flower's connection are written at every run. Keys and `sofed.env`, which the owner may edit, are
written once. Certificates are renewed before they end (`certify.py`).
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sofed_flwr.core.errors import ConfigError
from sofed_flwr.fleet.provision import certificates
from sofed_flwr.fleet.provision.certify import certify
from sofed_flwr.fleet.provision.files import PROGRAM, PUBLIC, folder, once, write
from sofed_flwr.fleet.provision.hosts import bracketed, refuse_bad_host
from sofed_flwr.fleet.provision.place import claimed, resolved, user_name
from sofed_flwr.fleet.provision.render import rendered, start_script, superlink_unit
from sofed_flwr.fleet.provision.settings import settings
from sofed_flwr.fleet.provision.site import Site
from sofed_flwr.launch.flwr_cli import FLEET
from sofed_flwr.storage.atomic_files import SECRET

DEVICE_SETTINGS = {
    "SOFED_BIN": "/opt/sofed/bin",
    "SOFED_STATE": "/var/lib/sofed",
    "SOFED_SPOOL": "/var/spool/sofed",
    "SOFED_COLLECT": "--camera 0",
    "SOFED_PORT": "9094",
}
DEVICE_NOTE = b"""\
# All settings that differ between devices. Threads of training, by default one per core: SOFED_THREADS=3
# More of Flower's node config for this device: SOFED_NODE_CONFIG="KEY=VALUE KEY='TEXT'"
"""


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
    """Make or extend the site in `directory`: `hosts` are the server's names; devices use the first.

    The first run sets the ports and the address to listen on (`bind`); by default 9092, 8000 and all addresses.
    """
    try:
        site = Site(resolved(directory))
        _refuse(site, hosts, insecure, port=port, control_port=control_port, bind=bind)
        with claimed(directory):
            _refuse(site, hosts, insecure, port=port, control_port=control_port, bind=bind)  # again, under the lock
            folder(site.server)
            if not insecure:
                certify(site, hosts, say)
            _write_settings(site, hosts, port or 9092, control_port or 8000, bind or "0.0.0.0")
            _write_server(site, insecure)
            if 0 < devices < len(site.devices):
                say(f"{site.directory} has {len(site.devices)} devices: none was added, none removed")
            for number in sorted({*site.devices, *range(devices)}):
                _write_device(site, number, insecure)
    except OSError as error:
        raise ConfigError(f"{error.filename or directory} cannot be made or read: {error.strerror}") from error
    return site


def steps(site: Site) -> str:
    """What to do next, in the order in which it works."""
    here, name = shlex.quote(str(site.directory)), f"device-{site.devices[0]}" if site.devices else "device-K"
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


def _refuse(site: Site, hosts: Sequence[str], insecure: bool, **listening: str | int | None) -> None:
    """Refuse bad names, and changes that would have to be made on the devices as well."""
    if not hosts and not site.settings:
        raise ConfigError("--host is missing: the name or address by which devices reach the server")
    for option, host in [*(("host", host) for host in hosts), ("bind", str(listening["bind"] or "localhost"))]:
        refuse_bad_host(option, host)
    if site.insecure and not insecure:
        raise ConfigError(f"{site.directory} was made with --insecure: give it again, or choose another directory")
    if site.secure and insecure:
        raise ConfigError(f"{site.directory} has keys and certificates: --insecure needs another directory")
    for name, value in listening.items():
        if site.settings and value is not None and str(value) != site.listening[name]:
            option, place = name.replace("_", "-"), site.server / "sofed.env"
            raise ConfigError(
                f"--{option} {value}: {place} says {site.listening[name]}; edit it there and on the devices"
            )


def _write_settings(site: Site, hosts: Sequence[str], port: int, control_port: int, bind: str) -> None:
    if not site.settings:
        values = {
            "SOFED_BIN": str(Path(sys.executable).parent),
            "SOFED_SUPERLINK": f"{bracketed(hosts[0])}:{port}",
            "SOFED_FLEET": f"{bracketed(bind)}:{port}",
            "SOFED_CONTROL_PORT": str(control_port),
        }
        write(site.server / "sofed.env", settings(values), PUBLIC)


def _write_server(site: Site, insecure: bool) -> None:
    write(site.server / "start.sh", start_script("server", insecure), PROGRAM)
    write(site.server / "sofed-superlink.service", superlink_unit(str(site.server), user_name(os.geteuid())), PUBLIC)
    folder(site.server / "keys")
    write(folder(site.server / "flower") / "config.toml", connection(site, insecure), PUBLIC)


def connection(site: Site, insecure: bool) -> bytes:
    """Flower's `config.toml`, by which `flwr` finds the server; it holds the site's path."""
    trust = "insecure = true" if insecure else f"root-certificates = {json.dumps(str(site.server / 'ca.crt'))}"
    address = f'address = "127.0.0.1:{site.listening["control_port"]}"'
    return f'[superlink]\ndefault = "{FLEET}"\n\n[superlink.{FLEET}]\n{address}\n{trust}\n'.encode()


def _write_device(site: Site, number: int, insecure: bool) -> None:
    place = site.device(number)
    if site.public_key(number).exists() and not place.exists():
        return  # copied to the device and deleted here, as a private key should be
    folder(place)
    values = {"SOFED_DEVICE": str(number), "SOFED_SUPERLINK": site.settings["SOFED_SUPERLINK"], **DEVICE_SETTINGS}
    once(place / "sofed.env", lambda: DEVICE_NOTE + settings(values), PUBLIC)
    write(place / "start.sh", start_script("device", insecure), PROGRAM)
    for name in ("collect.sh", "install.sh"):
        write(place / name, rendered(name), PROGRAM)
    write(folder(place / "bin") / "flwr-clientapp", rendered("flwr-clientapp"), PROGRAM)
    for name in ("sofed-supernode.service", "sofed-collect.service"):
        write(place / name, rendered(name), PUBLIC)
    if not insecure:
        write(place / "ca.crt", (site.server / "ca.crt").read_bytes(), PUBLIC)
        _write_keys(site, number)


def _write_keys(site: Site, number: int) -> None:
    """The private key first, the server's copy of the public key last: if that exists, all is done."""
    place, server_copy = site.device(number), site.public_key(number)
    if server_copy.exists():
        return
    private = once(place / "key", certificates.new_device_key, SECRET)
    try:
        public = certificates.device_public_key(private, place.name)
    except ValueError as error:
        raise ConfigError(f"{place / 'key'} is damaged: {error}; delete it and run this again") from None
    write(place / "key.pub", public, PUBLIC)
    write(server_copy, public, PUBLIC)
