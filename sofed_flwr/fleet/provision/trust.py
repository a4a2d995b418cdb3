"""Whether certificates and keys are intact, belong together and are valid today.

`sofed provision` repairs faults, `sofed doctor` reports them, and the start scripts check for them (`python -m
sofed_flwr.fleet.provision.start`), because Flower reports no expired authority: devices just never connect. No text
contains a byte of a file.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from sofed_flwr.fleet.provision import certificates
from sofed_flwr.fleet.provision.certificates import WARN_DAYS

AGAIN = "sofed provision DIR, then restart the server"
ON_SERVER = f"on the server: {AGAIN}"
COPY = "copy DIR/server/ca.crt of the site to {}"


class Fault(NamedTuple):
    """What is wrong with a file and what to do; not `fatal`: it still works, but not for long."""

    seen: str
    remedy: str
    fatal: bool = True


def authority_faults(place: Path, remedy: str | None = None) -> Iterator[Fault]:
    """Faults of an authority's certificate, as a device or the server has it."""
    remedy = remedy or COPY.format(place)
    try:
        content = place.read_bytes()
        trusted = certificates.is_authority(content)
    except (OSError, ValueError) as error:
        yield Fault(_unreadable(place, error), remedy)
        return
    if not trusted:
        yield Fault(f"{place} is not the certificate of an authority", remedy)
    yield from date_faults(place, content, f"{ON_SERVER}; then {COPY.format('/etc/sofed/ca.crt of every device')}")


def server_faults(folder: Path, hosts: Sequence[str]) -> Iterator[Fault]:
    """Faults of the files that the server shows to devices: authority, certificate, key."""
    faults = list(authority_faults(folder / "ca.crt", AGAIN))
    yield from faults
    certificate, key = folder / "server.crt", folder / "server.key"
    try:
        content = certificate.read_bytes()
        names = certificates.certificate_hosts(content)
    except (OSError, ValueError) as error:
        yield Fault(_unreadable(certificate, error), AGAIN)
        return
    if fault := key_fault(key, content, f"delete it; {AGAIN}"):
        yield fault
    yield from date_faults(certificate, content, AGAIN)
    if missing := [host for host in hosts if host not in names]:
        yield Fault(f"{certificate} is not valid for {', '.join(missing)}", AGAIN)
    if not faults and not certificates.is_signed_by(content, (folder / "ca.crt").read_bytes()):
        yield Fault(f"{certificate} is not signed by {folder / 'ca.crt'}", AGAIN)


def key_fault(key: Path, certificate: bytes, remedy: str) -> Fault | None:
    """A fault if this is not the certificate's private key."""
    try:
        if certificates.is_certificate_of(certificate, key.read_bytes()):
            return None
    except (OSError, ValueError) as error:
        return Fault(_unreadable(key, error), remedy)
    return Fault(f"{key} is not the key of the certificate beside it", remedy)


def device_key_fault(key: Path) -> Fault | None:
    """A fault if this is not a private key."""
    try:
        certificates.device_public_key(key.read_bytes(), "device")
    except (OSError, ValueError) as error:
        return Fault(_unreadable(key, error), "copy it from the site's folder of this device")
    return None


def date_faults(place: Path, content: bytes, remedy: str) -> Iterator[Fault]:
    """Whether a certificate is valid, and for how long."""
    today = datetime.now(UTC)
    begin, end = certificates.validity(content)
    if today < begin:
        seen = f"{place} is valid from {begin:%F}, and this clock says {today:%F %R}"
        yield Fault(seen, "set the clock: sudo timedatectl set-ntp true")
    elif today > end:
        yield Fault(f"{place} has expired on {end:%F}; this clock says {today:%F}", remedy)
    elif (days := certificates.days_left(content)) < WARN_DAYS:
        yield Fault(f"{place} expires in {days:.0f} days, on {end:%F}", remedy, fatal=False)


def _unreadable(place: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{place} does not exist"
    if isinstance(error, OSError):
        return f"{place} cannot be read ({error.strerror})"
    return f"{place} is {'empty' if not place.stat().st_size else f'damaged: {error}'}"
