"""Checks of the connection: server reachable, certificate valid, device registered."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from sofed_flwr.core.errors import SiteError
from sofed_flwr.fleet.doctor.finding import Finding
from sofed_flwr.fleet.provision.certificates import WARN_DAYS, days_left
from sofed_flwr.fleet.provision.hosts import split_address
from sofed_flwr.fleet.provision.registration import statuses
from sofed_flwr.fleet.provision.site import Site

SECONDS = 10.0
RENEW = "on the server: sofed provision DIR, then restart it"
EXPIRED, EARLY, NAME, ADDRESS = 10, 9, 62, 64  # OpenSSL's X509_V_ERR_ numbers
REMEDIES = {
    EXPIRED: f"the certificate, or this clock: see `date`; {RENEW}",
    EARLY: "this clock is behind: see `date`; sudo timedatectl set-ntp true",
    NAME: "on the server: sofed provision DIR --host NAME, with the name used here; then restart it",
    ADDRESS: "on the server: sofed provision DIR --host ADDRESS, with the address used here; then restart it",
}
FOREIGN = "ca.crt is another site's: copy it from the site's folder of this device"


def check_server(address: str, authority: Path | None) -> Iterator[Finding]:
    """Connect, do the TLS handshake, check the certificate; stops at the first failure.

    Without an authority, only connect.
    """
    host, port = split_address(address)
    if not host or not port:
        yield Finding("server", "fail", f"address {address!r}, expected HOST:PORT", "SOFED_SUPERLINK in sofed.env")
        return
    try:
        connection = socket.create_connection((host, int(port)), timeout=SECONDS)
    except (OSError, UnicodeError) as error:
        yield Finding("server", "fail", f"{address} does not answer ({error})", _remedy(error, port))
        return
    with connection:
        yield Finding("server", "ok", f"{address} answers")
        if authority:
            yield from _certificate(connection, host, authority)


def _remedy(error: Exception, port: str) -> str:
    if isinstance(error, socket.gaierror):
        return "the name is unknown here: use the address, or add it to /etc/hosts"
    if isinstance(error, ConnectionRefusedError):
        return "the machine is there, the server is not: run its start.sh; compare the port"
    return f"same network? firewall on the server: port {port} must be open"


def _certificate(connection: socket.socket, host: str, authority: Path) -> Iterator[Finding]:
    try:
        context = ssl.create_default_context(cafile=str(authority))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(connection, server_hostname=host) as secured:
            days = days_left(ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True) or b"").encode())
    except ssl.SSLCertVerificationError as error:
        remedy = REMEDIES.get(error.verify_code, FOREIGN)
        yield Finding("certificate", "fail", f"refused: {error.verify_message}", remedy)
    except OSError as error:  # ssl.SSLError is one
        seen = f"no TLS ({error})"
        yield Finding("certificate", "fail", seen, "the server runs --insecure, or something else has this port")
    else:
        seen = f"signed by {authority}, valid for {host}, {days:.0f} days left"
        soon = days < WARN_DAYS
        yield Finding("certificate", "warn" if soon else "ok", seen, RENEW if soon else "")


def check_registered(site: Site) -> Finding:
    """By the server's list of keys and connected devices."""
    try:
        found = statuses(site)
    except SiteError as error:
        return Finding("registered", "fail", str(error), f"{site.server}/start.sh")
    missing = [f"device-{number}" for number, status in found.items() if status in (None, "unregistered")]
    if missing:
        remedy = f"sofed provision {site.directory} --register"
        return Finding("registered", "fail", f"not registered: {', '.join(missing)}", remedy)
    online = sum(status == "online" for status in found.values())
    return Finding("registered", "ok", f"{len(found)} devices, {online} of them online")


def unknown_registration() -> Finding:
    """A device cannot ask; its log says so when it connects."""
    remedy = "if its log says Exit Code 305, on the server: sofed provision DIR --register"
    return Finding("registered", "unknown", "only the server can tell", remedy)
