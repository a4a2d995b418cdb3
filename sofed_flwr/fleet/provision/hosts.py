"""Names and addresses of the server, checked because they are written into certificates, scripts, units and TOML."""

import re
from ipaddress import ip_address

from sofed_flwr.core.errors import ConfigError

LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HOST_NAME = re.compile(rf"{LABEL}(\.{LABEL})*\.?")
LONGEST = 253
"""Longest name in the DNS."""


def refuse_bad_host(option: str, host: str) -> None:
    """Accept a host name, an IPv4 or an IPv6 address."""
    if _is_address(host):
        if option == "host" and ip_address(host).is_unspecified:
            raise ConfigError(
                f"--host {host} is not an address that devices can call; the server listens on all addresses anyway"
            )
        return
    if re.fullmatch(r"[0-9A-Fa-f:.\[\]]*:[0-9A-Fa-f:.\[\]]*|[^:]+:\d+", host):
        raise ConfigError(f"--{option} {host!r} is not an IPv6 address; a port is given by --port")
    numeric = re.fullmatch(r"[0-9.]+", host)
    if numeric or len(host) > LONGEST or not HOST_NAME.fullmatch(host):
        shown = host if len(host) <= LONGEST else f"{host[:20]}... ({len(host)} characters)"
        raise ConfigError(f"--{option} {shown!r} is neither a host name nor an address")


def bracketed(host: str) -> str:
    """As written before a port."""
    return f"[{host}]" if ":" in host else host


def split_address(address: str) -> tuple[str, str]:
    """Host and port of HOST:PORT, an invalid port as an empty text."""
    host, _, port = address.rpartition(":")
    valid = port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65536
    return host.strip("[]"), port if valid else ""


def _is_address(host: str) -> bool:
    """Without a zone (%eth0), which differs between machines."""
    try:
        return "%" not in host and bool(ip_address(host))
    except ValueError:
        return False
