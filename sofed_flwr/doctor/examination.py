"""`sofed doctor`: which checks a server and a device get, and where their facts come from."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sofed_flwr.component import ConfigError
from sofed_flwr.doctor import clock, machine, network, storage
from sofed_flwr.doctor.finding import Finding
from sofed_flwr.provision.files import read_settings
from sofed_flwr.provision.site import Site

INSTALLED = Path("/etc/sofed")


@dataclass(frozen=True)
class DeviceFacts:
    """What a device was told: by its `sofed.env`, by variables of these names, by options, the later the stronger."""

    superlink: str
    authority: Path
    key: Path
    state: Path
    source: str
    programs: Path


def device_facts(folder: Path, given: Mapping[str, str | None]) -> DeviceFacts:
    """Facts about the device whose folder this is; `given` are options, under the names of the variables."""
    shipped = read_settings(folder / "sofed.env")
    told = {name: value for name, value in os.environ.items() if name.startswith("SOFED_")}
    files = {"SOFED_CA": str(folder / "ca.crt"), "SOFED_KEY": str(folder / "key")}
    options = {name: value for name, value in given.items() if value is not None}
    facts = {"SOFED_BIN": str(Path(sys.executable).parent)} | files | shipped | told | options
    for name in ("SOFED_SUPERLINK", "SOFED_STATE", "SOFED_SPOOL"):
        if name not in facts:
            raise ConfigError(f"{name} is unknown: {folder}/sofed.env does not exist or lacks it; --site names another")
    return DeviceFacts(
        superlink=facts["SOFED_SUPERLINK"],
        authority=Path(facts["SOFED_CA"]),
        key=Path(facts["SOFED_KEY"]),
        state=Path(facts["SOFED_STATE"]),
        source=facts["SOFED_SPOOL"],
        programs=Path(facts["SOFED_BIN"]),
    )


def examine_device(facts: DeviceFacts) -> Iterator[Finding]:
    """All checks of a device, from the machine outwards."""
    yield from _machine(facts.programs, facts.state)
    yield storage.check_state(facts.state)
    yield storage.check_source(facts.source)
    way = list(network.check_server(facts.superlink, facts.authority))
    yield from way
    if all(finding.verdict != "fail" for finding in way):
        yield clock.check_against_server(facts.superlink, facts.authority)
    yield storage.check_device_key(facts.key)
    yield network.unknown_registration()


def examine_server(site: Site) -> Iterator[Finding]:
    """All checks of the server, on its own machine."""
    if not site.settings:
        raise ConfigError(f"{site.directory} is no site: it has no server/sofed.env")
    state = Path(site.settings.get("SOFED_STATE", site.server / "state"))
    yield from _machine(Path(site.settings["SOFED_BIN"]), state)
    yield storage.check_state(state)
    yield from network.check_server(f"127.0.0.1:{site.listening['port']}", site.server / "ca.crt")
    yield storage.check_private(site.server / "server.key")
    yield network.check_registered(site)


def _machine(programs: Path, state: Path) -> Iterator[Finding]:
    yield machine.check_python()
    yield machine.check_flower(programs)
    yield machine.check_torch()
    yield machine.check_memory()
    yield machine.check_disk(state)
    yield machine.check_ntp(machine.kernel_clock())
