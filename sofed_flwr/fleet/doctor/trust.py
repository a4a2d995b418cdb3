"""Checks of certificates and keys, the same that the start scripts make (`provision/trust.py`)."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from sofed_flwr.fleet.doctor.finding import Finding
from sofed_flwr.fleet.provision.build import connection
from sofed_flwr.fleet.provision.certificates import days_left, device_public_key
from sofed_flwr.fleet.provision.certify import LOOPBACK
from sofed_flwr.fleet.provision.hosts import split_address
from sofed_flwr.fleet.provision.site import Site
from sofed_flwr.fleet.provision.trust import AGAIN, Fault, authority_faults, key_fault, server_faults

OTHERS = 0o077


def check_authority(place: Path) -> Iterator[Finding]:
    """A device's copy of the authority's certificate."""
    yield from _findings("authority", authority_faults(place), place)


def check_site(site: Site) -> Iterator[Finding]:
    """Everything that devices need to trust a secure site."""
    host, _ = split_address(site.settings["SOFED_SUPERLINK"])
    yield from _findings("certificates", server_faults(site.server, [host, *LOOPBACK]), site.server / "server.crt")
    yield check_private(site.server / "server.key", "sofed provision DIR makes another")
    yield from _authority_key(site)
    for number in site.devices:
        yield from _device_folder(site, number)


def check_place(site: Site) -> Finding:
    """Flower's connection and the unit contain the path of the site."""
    place, wanted = site.server / "flower" / "config.toml", connection(site, site.insecure)
    unit = site.server / "sofed-superlink.service"
    try:
        moved = (
            place.read_bytes() != wanted or f'"{str(site.server).replace("%", "%%")}/start.sh"' not in unit.read_text()
        )
    except (OSError, UnicodeDecodeError):
        moved = True
    if moved:
        seen = f"{place} or {unit.name} is not what belongs here: the site was moved, or sofed.env edited"
        return Finding("place", "fail", seen, f"sofed provision {site.directory}, then restart the server")
    return Finding("place", "ok", f"{site.directory} is where its files say")


def check_private(place: Path, remedy: str = "copy it from the site's folder of this device") -> Finding:
    """A private key must not be readable by others."""
    if not place.is_file():
        return Finding("key", "fail", f"{place} does not exist or is no file", remedy)
    mode = place.stat().st_mode & 0o777
    if mode & OTHERS:
        return Finding("key", "fail", f"{place} has mode {mode:04o}, expected 0600", f"chmod 0600 {place}")
    if not os.access(place, os.R_OK):
        return Finding("key", "fail", f"{place} is not readable by this user", "run as its owner: sudo -u sofed")
    return Finding("key", "ok", f"{place}, 0600")


def check_device_key(place: Path) -> Finding:
    """Private, and of the kind Flower reads."""
    finding = check_private(place)
    if finding.verdict != "ok":
        return finding
    try:
        kind = device_public_key(place.read_bytes(), "device").split()[0].decode()
    except ValueError as error:
        return Finding("key", "fail", f"{place} is not a private key ({error})", "copy it again from the site")
    return Finding("key", "ok", f"{place}, 0600, {kind}")


def _findings(name: str, faults: Iterable[Fault], good: Path) -> Iterator[Finding]:
    found = list(faults)
    for fault in found:
        yield Finding(name, "fail" if fault.fatal else "warn", fault.seen, fault.remedy)
    if not found:
        yield Finding(name, "ok", f"{good} is whole, {days_left(good.read_bytes()):.0f} days left")


def _authority_key(site: Site) -> Iterator[Finding]:
    """The key that signs; it may be kept elsewhere."""
    key, certificate = site.authority / "ca.key", site.authority / "ca.crt"
    if not key.exists():
        return
    faults = list(authority_faults(certificate, AGAIN))
    if not faults and (fault := key_fault(key, certificate.read_bytes(), "restore it: it signs all certificates")):
        faults = [fault]
    yield from (Finding("authority", "fail", fault.seen, fault.remedy) for fault in faults if fault.fatal)
    yield check_private(key, "restore it: it signs all certificates")


def _device_folder(site: Site, number: int) -> Iterator[Finding]:
    """The folder to be copied to a device must be this site's."""
    place, known = site.device(number), site.public_key(number)
    if not place.exists():
        return
    again = f"take the right folder, or delete {known} and {place}/key, run sofed provision DIR and --register again"
    try:
        if (key := place / "key").exists() and device_public_key(key.read_bytes(), place.name) != known.read_bytes():
            yield Finding("device", "fail", f"{key} is not the key that {known} registers", again)
        if (place / "ca.crt").read_bytes() != (site.server / "ca.crt").read_bytes():
            yield Finding("device", "fail", f"{place}/ca.crt is not this site's", "sofed provision DIR")
    except (OSError, ValueError) as error:
        yield Finding("device", "fail", f"{place}: a file is missing or damaged ({error})", again)
