"""Certificates and keys that are torn, swapped or out of date: provisioning mends them, start and doctor tell."""

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sofed_flwr.cli import main as cli
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.fleet.doctor import trust as check
from sofed_flwr.fleet.provision import certificates, certify, trust
from sofed_flwr.fleet.provision.build import provision
from sofed_flwr.fleet.provision.site import Site
from tests.fleet.test_provision import contents, strict_handshake
from tests.support.fleet_processes import Command, superlink_command, supernode_command

TEN_YEARS = timedelta(days=3650)
Damage = Callable[[Path], object]
TORN: dict[str, Damage] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:200]),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "gone": lambda path: path.unlink(),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return provision(tmp_path / "site", ["server.lan"], 1)


@pytest.fixture
def other(tmp_path: Path) -> Site:
    return provision(tmp_path / "other", ["server.lan"], 1)


def age(site: Site, left: timedelta) -> None:
    """An authority, and its copies, that ends in `left` from now."""
    key = (site.authority / "ca.key").read_bytes()
    old = certificates.authority_certificate(key, datetime.now(UTC) + left - TEN_YEARS)
    for folder in (site.authority, site.server, site.device(0)):
        (folder / "ca.crt").write_bytes(old)


def run(command: Command) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command.arguments, env=command.environment, capture_output=True, text=True, timeout=60)


def failures(site: Site) -> list[str]:
    return [f"{finding.seen}; {finding.remedy}" for finding in check.check_site(site) if finding.verdict == "fail"]


def again(site: Site, *arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["provision", str(site.directory), *arguments])


@pytest.mark.parametrize("damage", [name for name in TORN if name != "a directory"])
@pytest.mark.parametrize("name", ["ca/ca.crt", "server/ca.crt", "server/server.crt", "device-0/ca.crt"])
def test_a_torn_certificate_is_mended_from_the_same_keys(site: Site, name: str, damage: str) -> None:
    """An empty ca.crt was copied to every device."""
    before = contents(site.directory)
    trusted = (site.device(0) / "ca.crt").read_bytes()
    TORN[damage](site.directory / name)
    result = again(site)
    assert result.exit_code == 0, result.output
    changed = {path for path, file in contents(site.directory).items() if file[2] != before[path][2]}
    assert changed <= {"server/server.crt"}
    assert failures(site) == []
    (site.device(0) / "ca.crt").write_bytes(trusted)  # as the device has it
    strict_handshake(site, "server.lan")


@pytest.mark.parametrize("damage", TORN)
@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_the_server_does_not_start_with_a_torn_file(site: Site, name: str, damage: str) -> None:
    TORN[damage](site.server / name)
    result = run(superlink_command(site))
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert f"server/{name}" in line
    assert "sofed provision DIR, then restart the server" in line
    assert any(f"server/{name}" in failure for failure in failures(site))


@pytest.mark.parametrize("damage", TORN)
@pytest.mark.parametrize("name", ["ca.crt", "key"])
def test_a_device_does_not_start_with_a_torn_file(site: Site, tmp_path: Path, name: str, damage: str) -> None:
    TORN[damage](site.device(0) / name)
    result = run(supernode_command(site, 0, state=tmp_path / "state", source=tmp_path))
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert f"device-0/{name}" in line
    assert "copy" in line
    assert "PRIVATE" not in line


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("server/server.key", "delete it and run this again"),
        ("ca/ca.key", "ca.key is damaged: no private key for TLS; restore it"),
    ],
)
def test_a_torn_key_is_never_replaced_behind_its_owners_back(site: Site, name: str, reason: str) -> None:
    TORN["cut"](site.directory / name)
    torn = (site.directory / name).read_bytes()
    result = again(site, "--host", "new.lan")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert reason in result.stderr
    assert (site.directory / name).read_bytes() == torn
    assert any(name in failure for failure in failures(site))


def test_a_new_key_after_a_torn_one_costs_the_devices_nothing(site: Site) -> None:
    (site.server / "server.key").unlink()
    assert again(site).exit_code == 0
    strict_handshake(site, "server.lan")


@pytest.mark.parametrize("name", ["ca.crt", "server.crt", "server.key"])
def test_a_file_of_another_site_is_told(site: Site, other: Site, name: str) -> None:
    (site.server / name).write_bytes((other.server / name).read_bytes())
    assert run(superlink_command(site)).returncode == 2
    assert any("is not" in failure for failure in failures(site))
    if name == "server.key":
        (site.server / name).unlink()
    assert again(site).exit_code == 0
    assert failures(site) == []
    strict_handshake(site, "server.lan")


def test_swapped_certificates_are_put_right(site: Site) -> None:
    first, second = site.server / "ca.crt", site.server / "server.crt"
    authority, own = first.read_bytes(), second.read_bytes()
    first.write_bytes(own)
    second.write_bytes(authority)
    assert "is not the certificate of an authority" in run(superlink_command(site)).stderr
    assert again(site).exit_code == 0
    assert first.read_bytes() == authority
    strict_handshake(site, "server.lan")


def test_another_authority_is_not_taken_for_ours(site: Site, other: Site) -> None:
    """Its key is kept elsewhere, so only the server's certificate tells; what worked is not overwritten."""
    (site.authority / "ca.key").unlink()
    (site.authority / "ca.crt").write_bytes((other.authority / "ca.crt").read_bytes())
    assert again(site).exit_code == 0
    assert (site.authority / "ca.crt").read_bytes() == (site.server / "ca.crt").read_bytes()
    strict_handshake(site, "server.lan")
    for folder in (site.authority, site.server):
        (folder / "ca.crt").write_bytes((other.authority / "ca.crt").read_bytes())
    (site.authority / "ca.key").write_bytes(b"")
    assert "restore what was replaced" in again(site).stderr


def test_an_authority_taken_offline_is_not_mistaken_for_an_insecure_site(site: Site) -> None:
    for path in site.authority.iterdir():
        path.unlink()
    site.authority.rmdir()
    assert again(site).exit_code == 0
    assert "has keys and certificates" in again(site, "--insecure").stderr
    assert "ca.key is missing" in again(site, "--host", "new.lan").stderr


@pytest.mark.parametrize("left", [timedelta(days=-3), timedelta(days=20)])
def test_an_authority_near_or_past_its_end_is_told_and_renewed_by_the_same_key(site: Site, left: timedelta) -> None:
    age(site, left)
    old = (site.device(0) / "ca.crt").read_bytes()
    words, verdict = ("has expired on", "fail") if left < timedelta(0) else ("expires in 20 days", "warn")
    (told,) = check.check_authority(site.device(0) / "ca.crt")
    assert (told.verdict, words in told.seen) == (verdict, True)
    assert "copy DIR/server/ca.crt of the site to /etc/sofed/ca.crt of every device" in told.remedy
    (ours,) = [finding for finding in check.check_site(site) if words in finding.seen and "server/ca" in finding.seen]
    assert ours.verdict == verdict
    result = again(site)
    assert "to /etc/sofed/ca.crt of every device" in result.output
    assert certificates.days_left((site.device(0) / "ca.crt").read_bytes()) == pytest.approx(3650, abs=1)
    strict_handshake(site, "server.lan")
    if left > timedelta(0):  # a device that still has the old one
        (site.device(0) / "ca.crt").write_bytes(old)
        strict_handshake(site, "server.lan")


def test_a_start_with_an_expired_authority_fails_and_one_near_its_end_warns(site: Site, tmp_path: Path) -> None:
    """Flower starts with an expired one, and no device ever connects."""
    python = Path(site.settings["SOFED_BIN"]) / "python"
    programs = {
        "flower-supernode": "echo started",
        "python": f'case "$*" in *superlink*) echo started; exit ;; esac; exec "{python}" "$@"',
    }
    (true := tmp_path / "bin").mkdir()
    for name, text in programs.items():
        (true / name).write_text(f"#!/bin/sh\n{text}\n")
        (true / name).chmod(0o755)
    for left, code, output in ((-3, 2, ""), (20, 0, "started\n"), (400, 0, "started\n")):
        age(site, timedelta(days=left))
        for command in (superlink_command(site), supernode_command(site, 0, state=tmp_path / "s", source=tmp_path)):
            result = run(Command(command.arguments, command.environment | {"SOFED_BIN": str(true)}))
            assert (result.returncode, result.stdout) == (code, output)
            assert len(result.stderr.splitlines()) == (left < 30)


def test_names_that_devices_call_are_in_the_certificate(site: Site) -> None:
    """Its owner gave the server another name in sofed.env."""
    place = site.server / "sofed.env"
    place.write_text(place.read_text().replace("server.lan:9092", "renamed.lan:9092"))
    assert "is not valid for renamed.lan" in run(superlink_command(site)).stderr
    assert any("is not valid for renamed.lan" in failure for failure in failures(site))
    assert again(site).exit_code == 0
    strict_handshake(site, "renamed.lan")


def test_a_server_that_nobody_calls_by_name_does_not_start(site: Site) -> None:
    command = superlink_command(site)
    result = run(Command(command.arguments, command.environment | {"SOFED_SUPERLINK": ""}))
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert "server/sofed.env lacks SOFED_SUPERLINK" in result.stderr


@pytest.mark.parametrize(
    ("spool", "reason"), [("", "device-0/sofed.env lacks SOFED_SPOOL"), ("a'b", "contains a quote")]
)
def test_a_device_whose_spool_cannot_be_named_does_not_start(
    site: Site, tmp_path: Path, spool: str, reason: str
) -> None:
    command = supernode_command(site, 0, state=tmp_path / "state")
    result = run(Command(command.arguments, command.environment | {"SOFED_SPOOL": spool}))
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert reason in result.stderr


class In1970(datetime):
    @classmethod
    def now(cls, zone: object = None) -> datetime:  # type: ignore[override]
        return datetime(1970, 1, 1, 0, 1, tzinfo=UTC)


def test_a_clock_that_was_never_set_is_told(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as unset:
        unset.setattr(trust, "datetime", In1970)
        (fault,) = check.authority_faults(site.device(0) / "ca.crt")
    assert "this clock says 1970-01-01" in fault.seen
    assert "set the clock" in fault.remedy
    monkeypatch.setattr(certify, "datetime", In1970)
    with pytest.raises(ConfigError, match="this clock says 1970-01-01: set it first"):
        provision(tmp_path / "new", ["server.lan"])


@pytest.mark.parametrize("name", ["ca/ca.key", "server/server.key"])
def test_a_key_that_others_can_read_is_told(site: Site, name: str) -> None:
    (site.directory / name).chmod(0o644)
    assert [failure for failure in failures(site) if f"{name} has mode 0644" in failure]


def test_a_device_folder_of_another_site_is_told(site: Site, other: Site) -> None:
    for name in ("key", "ca.crt"):
        (site.device(0) / name).write_bytes((other.device(0) / name).read_bytes())
    told = "\n".join(failures(site))
    assert "device-0/key is not the key that" in told
    assert "device-0/ca.crt is not this site's" in told


def test_a_moved_site_is_told(site: Site) -> None:
    assert check.check_place(site).verdict == "ok"
    moved = Site(site.directory.rename(site.directory.with_name("moved")))
    finding = check.check_place(moved)
    assert (finding.verdict, "the site was moved" in finding.seen) == ("fail", True)
    assert again(moved).exit_code == 0
    assert check.check_place(moved).verdict == "ok"


def test_a_torn_device_key_before_registration_is_one_sentence(site: Site) -> None:
    site.public_key(0).unlink()
    TORN["cut"](site.device(0) / "key")
    result = again(site)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "device-0/key is damaged" in result.stderr
