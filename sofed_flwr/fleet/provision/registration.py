"""Register the devices' public keys with the running server; it refuses unregistered devices (exit code 305).

Names matter: the server learns from `device-K` which node is which device. `flwr supernode list` shows neither
names nor keys, so the node number that Flower answers with is kept beside the public key.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sofed_flwr.core.errors import ConfigError, SiteError
from sofed_flwr.fleet.provision.files import PUBLIC, write
from sofed_flwr.fleet.provision.site import CONNECTION, Site

SECONDS = 120.0  # bound of a command: 1-2 s on a PC
TAKEN = "Public key already in use"


def register(site: Site, say: Callable[[str], None] = print) -> None:
    """Register every device that is not registered yet, under its name."""
    if site.insecure:
        raise ConfigError(f"{site.directory} was made with --insecure: there are no keys to register")
    missing = [number for number, status in statuses(site).items() if status is None]
    for number in missing:
        name = f"device-{number}"
        answer = _ask(site, "supernode", "register", str(site.public_key(number)), CONNECTION, "--name", name)
        if answer.get("success"):
            write(_node(site, number), f"{answer['node-id']}\n".encode(), PUBLIC)
        elif TAKEN not in answer["error-message"]:
            raise SiteError(f"{name} was not registered: {answer['error-message']}")
        say(f"{name}: {'registered' if answer.get('success') else 'was registered before'}")
    say(f"{len(site.devices)} devices are registered, {len(missing)} of them now")


def statuses(site: Site) -> dict[int, str | None]:
    """Device -> registered, online, offline or unregistered, as the server sees it; None if it has no such node."""
    answer = _ask(site, "supernode", "list", CONNECTION)
    if not answer.get("success"):
        raise SiteError(f"no answer from {site.server}, is its start.sh running? {answer['error-message']}")
    seen = {str(node["node-id"]): str(node["status"]) for node in answer["nodes"]}
    recorded = {number: _node(site, number) for number in site.devices}
    return {number: seen.get(path.read_text().strip()) if path.exists() else None for number, path in recorded.items()}


def _node(site: Site, number: int) -> Path:
    return site.public_key(number).with_suffix(".node")


def _ask(site: Site, *arguments: str) -> dict[str, Any]:
    """Return the answer of a `flwr` command; the key `success` tells whether it worked, the exit code does not."""
    command = site.flwr_command(*arguments, "--format", "json")
    try:
        process = subprocess.run(command.arguments, env=command.environment, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise SiteError(f"flwr {arguments[0]} {arguments[1]} gave no answer within {SECONDS:g} s") from None
    answer = _parsed(process.stdout) or {"error-message": process.stderr.decode(errors="replace")}
    if not answer.get("success"):  # progress, then the reason
        reason = str(answer.get("error-message", "")).strip() or "no reason given"
        answer["error-message"] = reason.splitlines()[-1]
    return answer


def _parsed(output: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(output)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
