"""Checks of the start scripts before they start Flower.

`python -m sofed_flwr.fleet.provision.start server|device FOLDER`:
Flower starts with an expired or wrong certificate and then waits forever. Here each fault is one line, and a fatal one
ends the start (exit code 2); systemd tries again, so a clock that is set later needs no further action.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from sofed_flwr.fleet.provision.certify import LOOPBACK
from sofed_flwr.fleet.provision.hosts import split_address
from sofed_flwr.fleet.provision.trust import Fault, authority_faults, device_key_fault, server_faults


def faults(role: str, folder: Path) -> Iterator[Fault]:
    """What is wrong with the files of a server or a device; its settings are in the environment."""
    if role == "server":
        host, _ = split_address(os.environ.get("SOFED_SUPERLINK", ""))
        if not host:
            yield Fault(
                f"{folder / 'sofed.env'} lacks SOFED_SUPERLINK", "add it: HOST:PORT, as devices call the server"
            )
        yield from server_faults(folder, [host, *LOOPBACK] if host else LOOPBACK)
        return
    yield from authority_faults(folder / "ca.crt")
    if fault := device_key_fault(folder / "key"):
        yield fault
    for name in ("SOFED_SUPERLINK", "SOFED_SPOOL", "SOFED_STATE", "SOFED_SOURCE"):
        value = os.environ.get(name, "")
        if not value and name != "SOFED_SOURCE":
            yield Fault(f"{folder / 'sofed.env'} lacks {name}", f"add a line {name}=VALUE")
        if "'" in value:
            yield Fault(f"{name} contains a quote, which Flower's node config cannot hold", "choose another directory")


def main() -> int:
    """One line per fault; 2 if Flower could not connect."""
    role, folder = sys.argv[1:]
    found = list(faults(role, Path(folder)))
    for fault in found:
        print(f"sofed: {fault.seen}; {fault.remedy}", file=sys.stderr)
    return 2 if any(fault.fatal for fault in found) else 0


if __name__ == "__main__":
    sys.exit(main())
