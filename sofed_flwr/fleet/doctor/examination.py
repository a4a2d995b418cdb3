"""`sofed doctor`: the checks of a server and of a device, and the settings they need."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sofed_flwr.core.errors import ConfigError
from sofed_flwr.fleet.doctor import apps, clock, machine, network, storage, trust
from sofed_flwr.fleet.doctor.finding import Finding
from sofed_flwr.fleet.provision.settings import read_settings
from sofed_flwr.fleet.provision.site import Site


def device_settings(folder: Path, given: Mapping[str, str | None]) -> dict[str, str]:
    """Settings of the device whose folder this is, under the names of `sofed.env`.

    Environment variables win over that file, and options (`given`) over both.
    """
    shipped = read_settings(folder / "sofed.env")
    variables = {name: value for name, value in os.environ.items() if name.startswith("SOFED_")}
    files = {"SOFED_CA": str(folder / "ca.crt"), "SOFED_KEY": str(folder / "key")}
    options = {name: value for name, value in given.items() if value is not None}
    found = {"SOFED_BIN": str(Path(sys.executable).parent)} | files | shipped | variables | options
    for name in ("SOFED_SUPERLINK", "SOFED_STATE", "SOFED_SPOOL"):
        if name not in found:
            raise ConfigError(f"{name} is unknown: {folder}/sofed.env does not exist or lacks it; --site names another")
    return found | {"SOFED_SOURCE": found.get("SOFED_SOURCE") or f"spool:{found['SOFED_SPOOL']}"}


def examine_device(settings: Mapping[str, str]) -> Iterator[Finding]:
    """All checks of a device, beginning with the machine."""
    server, authority, state = settings["SOFED_SUPERLINK"], Path(settings["SOFED_CA"]), Path(settings["SOFED_STATE"])
    yield from _machine(Path(settings["SOFED_BIN"]), state)
    yield storage.check_state(state)
    yield apps.check_apps(state / "flower", "sudo systemctl restart sofed-supernode, or run start.sh again")
    yield storage.check_source(settings["SOFED_SOURCE"])
    known = list(trust.check_authority(authority))
    yield from known
    good = _is_good(known)
    way = list(network.check_server(server, authority if good else None))
    yield from way
    if good and _is_good(way):
        yield clock.check_against_server(server, authority)
    yield trust.check_device_key(Path(settings["SOFED_KEY"]))
    yield network.unknown_registration()


def examine_server(site: Site) -> Iterator[Finding]:
    """All checks of the server, on its own machine."""
    if not site.settings:
        raise ConfigError(f"{site.directory} is no site: it has no server/sofed.env")
    state = Path(site.settings.get("SOFED_STATE", site.server / "state"))
    yield from _machine(Path(site.settings["SOFED_BIN"]), state)
    yield storage.check_state(state)
    yield apps.check_apps(site.server / "flower", f"stop the server and run {site.server}/start.sh again")
    yield trust.check_place(site)
    address = f"127.0.0.1:{site.listening['port']}"
    if site.insecure:
        yield Finding("certificates", "warn", "made with --insecure: no encryption, no keys", "for an experiment only")
        yield from network.check_server(address, None)
        return
    known = list(trust.check_site(site))
    yield from known
    yield from network.check_server(address, site.server / "ca.crt" if _is_good(known) else None)
    yield network.check_registered(site)


def _is_good(findings: Iterable[Finding]) -> bool:
    return all(finding.verdict != "fail" for finding in findings)


def _machine(programs: Path, state: Path) -> Iterator[Finding]:
    yield machine.check_python()
    yield machine.check_flower(programs)
    yield machine.check_torch()
    yield machine.check_memory()
    yield machine.check_disk(state)
    yield machine.check_ntp(machine.kernel_clock())
