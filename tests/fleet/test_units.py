"""The services of a site: systemd accepts them, leaves little of the system to them, and they allow what is needed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sofed_flwr.fleet.provision.build import provision
from sofed_flwr.fleet.provision.render import superlink_unit
from sofed_flwr.fleet.provision.site import Site

UNITS = ["server/sofed-superlink.service", "device-0/sofed-supernode.service", "device-0/sofed-collect.service"]
EXPOSURE = {"sofed-superlink": 2.5, "sofed-supernode": 2.0, "sofed-collect": 1.2}
"""Of 10, by `systemd-analyze security`; 9.3, 7.7 and 7.7 without the directives."""
EVERYWHERE = {
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "RestrictNamespaces=yes",
    "SystemCallFilter=@system-service",
    "SystemCallErrorNumber=EPERM",
    "DevicePolicy=closed",
}
analyze = shutil.which("systemd-analyze") or ""
with_systemd = pytest.mark.skipif(not analyze, reason="no systemd-analyze here")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return provision(tmp_path / "a site, 100% ours", ["server.lan"], 1)


def directives(unit: Path) -> list[str]:
    return [line for line in unit.read_text().splitlines() if line and not line.startswith("#")]


def test_the_scripts_are_shell(site: Site) -> None:
    scripts = [*site.directory.glob("*/*.sh"), *site.directory.glob("*/bin/*")]
    assert len(scripts) == 5
    for script in scripts:
        subprocess.run(["sh", "-n", script], check=True)


@pytest.mark.parametrize("name", UNITS)
def test_a_service_is_confined(site: Site, name: str) -> None:
    lines = directives(site.directory / name)
    assert set(lines) >= EVERYWHERE
    assert not [line for line in lines if line.startswith("EnvironmentFile")]  # two readers, two meanings


def test_what_training_and_cameras_need_is_not_taken_away(site: Site) -> None:
    link, node, camera = (directives(site.directory / name) for name in UNITS)
    for computing in (link, node):
        assert "MemoryDenyWriteExecute=yes" not in computing  # oneDNN compiles convolutions
        assert "ProcSubset=pid" not in computing  # torch reads /proc/cpuinfo
        assert "PrivateNetwork=yes" not in computing
        assert "DeviceAllow=char-nvidia* rw" in computing
    for owner in (node, camera):
        assert {"ProtectSystem=strict", "ReadWritePaths=-/var/lib/sofed -/var/spool/sofed"} <= set(owner)
    assert {"DeviceAllow=char-video4linux rw", "PrivateNetwork=yes"} <= set(camera)
    assert "PrivateDevices=yes" not in camera


def test_a_percent_sign_and_spaces_in_a_path_are_taken_as_they_are() -> None:
    unit = superlink_unit("/srv/a b/100%h", "jo%n").decode().splitlines()
    assert 'ExecStart="/srv/a b/100%%h/start.sh"' in unit
    assert "WorkingDirectory=/srv/a b/100%%h" in unit
    assert "User=jo%%n" in unit
    assert "WorkingDirectory=/srv/@USER@" in superlink_unit("/srv/@USER@", "root").decode()


def test_the_user_is_the_one_who_provisions_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "x\nExecStartPre=/bin/reboot")
    unit = (provision(tmp_path, ["server.lan"]).server / "sofed-superlink.service").read_text()
    assert "reboot" not in unit


@with_systemd
@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong(site: Site, tmp_path: Path, name: str) -> None:
    unit = site.directory / name
    here = str(unit.parent).replace("%", "%%")
    copy = tmp_path / unit.name  # as if installed: the scripts are not below /etc here
    copy.write_text(unit.read_text().replace("ExecStart=/etc/sofed/", f"ExecStart=/bin/sh -c 'exit 0' {here}/"))
    check = subprocess.run([analyze, "verify", copy], capture_output=True, text=True)
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")


@with_systemd
@pytest.mark.parametrize("name", UNITS)
def test_little_of_the_system_is_exposed(site: Site, name: str) -> None:
    command = [analyze, "security", "--offline=true", "--no-pager", str(site.directory / name)]
    last = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[-1]
    assert float(last.split(": ")[1].split()[0]) <= EXPOSURE[Path(name).stem], last
