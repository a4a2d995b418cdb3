"""The authority's and the server's certificate: made, repaired and renewed; a private key is never replaced.

The authority's certificate is renewed from the same key, so what it signed stays valid and a device's old copy works
until it expires. The server's is renewed for the same key by the same authority; devices need no change.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from sofed_flwr.core.errors import ConfigError
from sofed_flwr.fleet.provision import certificates, trust
from sofed_flwr.fleet.provision.certificates import RENEW_DAYS
from sofed_flwr.fleet.provision.files import PUBLIC, folder, once, write
from sofed_flwr.fleet.provision.hosts import split_address
from sofed_flwr.fleet.provision.site import Site
from sofed_flwr.storage.atomic_files import SECRET

LOOPBACK = ["localhost", "127.0.0.1"]
"""The server's names for itself: its own executor connects over TLS, too."""
OLDEST = datetime(2026, 1, 1, tzinfo=UTC)
"""A clock before this has not been set."""


def certify(site: Site, hosts: Sequence[str], say: Callable[[str], None]) -> None:
    """Give the server its authority's certificate, a key, and a certificate for `hosts` and its old names."""
    if (today := datetime.now(UTC)) < OLDEST:
        raise ConfigError(f"this clock says {today:%F}: set it first, because certificates begin to be valid today")
    authority = _authority(site, say)
    write(site.server / "ca.crt", authority, PUBLIC)
    own = once(site.server / "server.key", certificates.new_key, SECRET)
    place = site.server / "server.crt"
    known, called = _hosts(place), split_address(site.settings.get("SOFED_SUPERLINK", ""))[0]
    wanted = list(dict.fromkeys([*known, *([called] if called else []), *hosts, *LOOPBACK]))
    faults = trust.server_faults(site.server, wanted)
    if not any(fault.fatal for fault in faults) and certificates.days_left(place.read_bytes()) > RENEW_DAYS:
        return  # an authority that ends soon is no reason to sign with a key that may be elsewhere by now
    key = _signing_key(site, authority, f"make a certificate for {', '.join(wanted)}")
    try:
        write(place, certificates.server_certificate(own, key, wanted), PUBLIC)
    except ValueError:
        raise ConfigError(
            f"{site.server / 'server.key'} is not a private key; delete it and run this again: devices need no change"
        ) from None
    if site.settings:
        say(f"new server certificate, same authority, for {', '.join(wanted)}: restart the server")


def _authority(site: Site, say: Callable[[str], None]) -> bytes:
    place, copy, key = folder(site.authority) / "ca.crt", site.server / "ca.crt", site.authority / "ca.key"
    if not any(path.exists() for path in (place, copy, key)):
        once(key, certificates.new_key, SECRET)
    content = _known_authority(site)
    if content is None:
        content = _self_signed(key)
        if site.settings:
            say(f"{place} was damaged or missing: made again from the same key; the devices' copies stay valid")
    elif certificates.days_left(content) < RENEW_DAYS:
        _signing_key(site, content, "renew the authority's certificate")
        content = _self_signed(key)
        what_to_do = f"copy {copy} to /etc/sofed/ca.crt of every device, and restart the server"
        say(f"new certificate of the authority, same key: {what_to_do}; the old one is valid until it expires")
    for fault in trust.date_faults(place, content, ""):
        raise ConfigError(f"{fault.seen}; {fault.remedy}")
    write(place, content, PUBLIC)
    return content


def _known_authority(site: Site) -> bytes | None:
    """The authority's certificate, the copy that belongs to the rest of the site; None if neither is intact."""
    places = [path / "ca.crt" for path in (site.authority, site.server)]
    whole = [path.read_bytes() for path in places if _is_authority(path)]
    fitting = [content for content in whole if _fits(site, content)]
    if whole and not fitting:
        raise ConfigError(
            f"{places[0]} belongs neither to {site.authority / 'ca.key'} nor to {site.server / 'server.crt'}; "
            "restore what was replaced"
        )
    return fitting[0] if fitting else None


def _fits(site: Site, authority: bytes) -> bool:
    try:
        return certificates.is_certificate_of(authority, (site.authority / "ca.key").read_bytes())
    except (OSError, ValueError):  # the key is kept elsewhere, or torn
        place = site.server / "server.crt"
        return place.exists() and certificates.is_signed_by(place.read_bytes(), authority)


def _self_signed(key: Path) -> bytes:
    try:
        return certificates.authority_certificate(key.read_bytes())
    except (OSError, ValueError):
        remedy = "restore one of them, or make another site and copy its folders to all devices"
        what = f"{key} is not a private key, and {key.with_suffix('.crt')} not a certificate"
        raise ConfigError(f"{what}; {remedy}") from None


def _signing_key(site: Site, authority: bytes, purpose: str) -> bytes:
    """The authority's private key, which may be kept elsewhere until it is needed."""
    key = site.authority / "ca.key"
    if not key.exists():
        raise ConfigError(f"{key} is missing, and without it sofed cannot {purpose}; put it back for this")
    if fault := trust.key_fault(key, authority, "restore it"):
        raise ConfigError(f"{fault.seen}; restore it: without it sofed cannot {purpose}")
    return key.read_bytes()


def _is_authority(place: Path) -> bool:
    try:
        return certificates.is_authority(place.read_bytes())
    except (OSError, ValueError):
        return False


def _hosts(place: Path) -> list[str]:
    try:
        return certificates.certificate_hosts(place.read_bytes())
    except (OSError, ValueError):
        return []
