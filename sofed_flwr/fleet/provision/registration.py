"""Register the devices' public keys with the running server; it refuses unregistered devices (exit code 305).

Names matter: the server learns from `device-K` which node is which device. `flwr supernode list` shows neither
names nor keys, so the node number that Flower answers with is kept beside the public key.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sofed_flwr.core.errors import ConfigError, RunFailed, SiteError
from sofed_flwr.fleet.provision.files import PUBLIC, write
from sofed_flwr.fleet.provision.site import Site
from sofed_flwr.launch.flwr_cli import FLEET, site_commands

TAKEN = "Public key already in use"


def register(site: Site, say: Callable[[str], None] = print) -> None:
    """Register every device that is not registered yet, under its name."""
    if site.insecure:
        raise ConfigError(f"{site.directory} was made with --insecure: there are no keys to register")
    missing = [number for number, status in statuses(site).items() if status is None]
    for number in missing:
        name = f"device-{number}"
        try:
            answer = _ask(site, "supernode", "register", str(site.public_key(number)), FLEET, "--name", name)
        except SiteError as error:
            if TAKEN not in str(error):
                raise SiteError(f"{name} was not registered: {error}") from error
            say(f"{name}: was registered before")
        else:
            write(_node(site, number), f"{answer['node-id']}\n".encode(), PUBLIC)
            say(f"{name}: registered")
    say(f"{len(site.devices)} devices are registered, {len(missing)} of them now")


def statuses(site: Site) -> dict[int, str | None]:
    """Device -> registered, online, offline or unregistered, as the server sees it; None if it has no such node."""
    try:
        nodes = _ask(site, "supernode", "list", FLEET)["nodes"]
    except SiteError as error:
        raise SiteError(f"no answer from {site.server}, is its start.sh running? {error}") from error
    seen = {str(node["node-id"]): str(node["status"]) for node in nodes}
    recorded = {number: _node(site, number) for number in site.devices}
    return {number: seen.get(path.read_text().strip()) if path.exists() else None for number, path in recorded.items()}


def _node(site: Site, number: int) -> Path:
    return site.public_key(number).with_suffix(".node")


def _ask(site: Site, *command: str) -> dict[str, Any]:
    try:
        with site_commands(site.server / "flower") as flower:
            return flower.ask(*command)
    except RunFailed as error:  # progress, then the reason
        raise SiteError(str(error).splitlines()[-1]) from error
