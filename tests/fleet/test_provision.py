"""Provisioning: what a site holds, that running again loses nothing, and that its keys really keep strangers out."""

import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sofed_flwr.cli import main as cli
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.fleet.provision import certificates
from sofed_flwr.fleet.provision.build import provision
from sofed_flwr.fleet.provision.registration import register, statuses
from sofed_flwr.fleet.provision.settings import read_settings
from sofed_flwr.fleet.provision.site import Site
from tests.support.fleet_processes import Command, superlink_command, supernode_command


def contents(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Name -> mode, time of writing, content, of every file."""
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        str(path.relative_to(directory)): (path.stat().st_mode & 0o777, path.stat().st_mtime_ns, path.read_bytes())
        for path in found
    }


def strict_handshake(site: Site, name: str) -> None:
    """A client as strict as Python 3.13's default talks to a server with the site's certificate."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(site.server / "server.crt", site.server / "server.key")
    client = ssl.create_default_context(cafile=str(site.device(0) / "ca.crt"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with suppress(OSError), theirs:
            server.wrap_socket(theirs, server_side=True).close()

    thread = threading.Thread(target=serve)
    thread.start()
    with ours:
        client.wrap_socket(ours, server_hostname=name).close()
    thread.join(5)


def test_a_site_keeps_its_secrets_where_they_belong(tmp_path: Path) -> None:
    site = provision(tmp_path / "site", ["server.lan"], 2)
    modes = {name: mode for name, (mode, _, _) in contents(site.directory).items()}
    secrets = {"ca/ca.key", "server/server.key", "device-0/key", "device-1/key"}
    assert {name for name, mode in modes.items() if mode == 0o600} == secrets
    assert {path.stat().st_mode & 0o777 for path in site.directory.rglob("*") if path.is_dir()} == {0o700}
    authority = (site.directory / "ca" / "ca.key").read_bytes()
    assert not any(authority in path.read_bytes() for path in site.directory.glob("device-*/**/*") if path.is_file())
    assert (site.device(0) / "key").read_bytes() != (site.device(1) / "key").read_bytes()
    units = ["sofed-supernode.service", "sofed-collect.service", "start.sh", "collect.sh", "install.sh"]
    units += ["bin/flwr-clientapp"]
    assert all((site.device(0) / name).read_bytes() == (site.device(1) / name).read_bytes() for name in units)
    assert read_settings(site.device(1) / "sofed.env")["SOFED_SUPERLINK"] == "server.lan:9092"


def test_git_sees_nothing_of_a_site(tmp_path: Path) -> None:
    """docs/devices.md makes it in the clone, and a commit of everything must not publish its keys."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    provision(tmp_path / "site", ["server.lan"], 1)
    seen = subprocess.run(["git", "-C", tmp_path, "status", "--porcelain"], check=True, capture_output=True)
    assert seen.stdout == b""


@pytest.mark.parametrize("name", ["server.lan", "192.0.2.7", "2001:db8::1", "localhost", "127.0.0.1"])
def test_a_strict_client_accepts_the_certificate_for_every_name(tmp_path: Path, name: str) -> None:
    strict_handshake(provision(tmp_path, ["server.lan", "192.0.2.7", "2001:db8::1"], 1), name)


def test_a_strict_client_refuses_another_name(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'other\.lan'"):
        strict_handshake(provision(tmp_path, ["server.lan"], 1), "other.lan")


def test_running_again_changes_no_byte(tmp_path: Path) -> None:
    before = contents(provision(tmp_path, ["server.lan"], 2).directory)
    for devices in (2, 0):
        assert contents(provision(tmp_path, ["server.lan"], devices).directory) == before


def test_more_devices_are_added_and_none_is_ever_removed(tmp_path: Path) -> None:
    before = contents(provision(tmp_path, ["server.lan"], 2).directory)
    site = provision(tmp_path, devices=4)
    assert site.devices == [0, 1, 2, 3]
    after = contents(tmp_path)
    assert before.items() <= after.items()
    said: list[str] = []
    assert provision(tmp_path, devices=1, say=said.append).devices == [0, 1, 2, 3]
    assert contents(tmp_path) == after
    assert "4 devices" in said[0]


def test_a_new_host_costs_a_new_server_certificate_and_nothing_else(tmp_path: Path) -> None:
    before = contents(provision(tmp_path, ["server.lan"], 1).directory)
    said: list[str] = []
    site = provision(tmp_path, ["192.0.2.7"], say=said.append)
    assert {name for name, file in contents(tmp_path).items() if before[name] != file} == {"server/server.crt"}
    assert "same authority, for server.lan, localhost, 127.0.0.1, 192.0.2.7" in said[0]
    for name in ("server.lan", "192.0.2.7"):
        strict_handshake(site, name)


def test_a_certificate_near_its_end_is_renewed_for_all_its_hosts(tmp_path: Path) -> None:
    site = provision(tmp_path, ["server.lan"], 1)
    place, long_ago = site.server / "server.crt", datetime.now(UTC) - timedelta(days=800)
    secrets = (site.server / "server.key").read_bytes(), (site.authority / "ca.key").read_bytes()
    place.write_bytes(certificates.server_certificate(*secrets, ["old.lan", "localhost", "127.0.0.1"], long_ago))
    provision(tmp_path, say=lambda _: None)
    assert certificates.days_left(place.read_bytes()) == pytest.approx(825, abs=0.1)
    strict_handshake(site, "old.lan")


def test_a_run_killed_at_any_file_is_completed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete = contents(provision(tmp_path / "whole", ["server.lan"], 1).directory).keys()
    replace = Path.replace
    for deadly in range(len(complete)):
        place, count = tmp_path / f"killed-{deadly}", iter(range(1000))

        def replace_or_die(path: Path, target: Path, deadly: int = deadly, count: Iterator[int] = count) -> Path:
            if next(count) == deadly:
                raise KeyboardInterrupt
            return replace(path, target)

        monkeypatch.setattr(Path, "replace", replace_or_die)
        with pytest.raises(KeyboardInterrupt):
            provision(place, ["server.lan"], 1)
        monkeypatch.setattr(Path, "replace", replace)
        left = {name: file for name, file in contents(place).items() if not name.endswith(".tmp")}
        site = provision(place, ["server.lan"], 1)
        after = contents(place)
        assert after.keys() == complete
        assert left.items() <= after.items()
        strict_handshake(site, "server.lan")


def test_a_key_taken_away_after_copying_is_not_replaced(tmp_path: Path) -> None:
    site = provision(tmp_path, ["server.lan"], 3)
    known = site.public_key(0).read_bytes()
    (site.device(0) / "key").unlink()
    shutil.rmtree(site.device(1))
    (site.authority / "ca.key").unlink()
    provision(tmp_path, devices=3)
    assert site.public_key(0).read_bytes() == known
    assert not (site.device(0) / "key").exists()
    assert not site.device(1).exists()
    assert site.devices == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"ca.key is missing, and without it sofed cannot make .* for .*new.lan"):
        provision(tmp_path, ["new.lan"])


def test_edited_settings_are_kept_and_followed(tmp_path: Path) -> None:
    site = provision(tmp_path, ["server.lan"], 1)
    place = site.server / "sofed.env"
    place.write_text(place.read_text().replace("8000", "'8001'  # taken here"))
    provision(tmp_path)
    assert 'address = "127.0.0.1:8001"' in (site.server / "flower" / "config.toml").read_text()


NEITHER = "is neither a host name nor an address"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "--host is missing"),
        (["--host", "a b"], f"'a b' {NEITHER}"),
        (["--host", "server.lan:9092"], "is not an IPv6 address; a port is given by --port"),
        (["--host", "x$(reboot)"], NEITHER),
        (["--host", 'x"\n[superlink.evil]'], NEITHER),
        (["--host", "\x1b[2Jx"], r"'\x1b[2Jx' is neither"),
        (["--host", "server.lan\n"], NEITHER),
        (["--host", "a" * 300], "(300 characters)' is neither"),
        (["--host", ".".join(["a" * 64, "lan"])], NEITHER),
        (["--host", "-x"], NEITHER),
        (["--host", "a..b"], NEITHER),
        (["--host", "999.1.1.1"], NEITHER),
        (["--host", "fe80::1%eth0"], NEITHER),
        (["--host", ""], NEITHER),
        (["--host", "0.0.0.0"], "is not an address that devices can call"),
        (["--host", "server.lan", "--bind", "x'; reboot"], f'--bind "x\'; reboot" {NEITHER}'),
    ],
)
def test_a_wrong_order_is_refused_in_one_sentence(tmp_path: Path, arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(cli.app, ["provision", str(tmp_path / "site"), *arguments])
    assert result.exit_code == 2
    assert reason in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "site").exists()


def test_more_devices_than_anyone_has_are_refused(tmp_path: Path) -> None:
    arguments = ["provision", str(tmp_path / "site"), "--host", "server.lan", "--devices", "100000"]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 2
    assert "10000" in result.stderr
    assert not (tmp_path / "site").exists()


def test_what_devices_were_told_is_not_changed_behind_their_back(tmp_path: Path) -> None:
    provision(tmp_path, ["server.lan"], 1)
    with pytest.raises(ConfigError, match=r"--port 9999: .*sofed.env says 9092"):
        provision(tmp_path, port=9999)
    with pytest.raises(ConfigError, match="--insecure needs another directory"):
        provision(tmp_path, insecure=True)


def test_plain_text_needs_its_flag_and_warns(tmp_path: Path) -> None:
    secure = provision(tmp_path / "secure", ["server.lan"], 1)
    plain = provision(tmp_path / "plain", ["server.lan"], 1, insecure=True)
    scripts = [site.directory / name / "start.sh" for site in (secure, plain) for name in ("server", "device-0")]
    assert ["--insecure" in path.read_text() for path in scripts] == [False, False, True, True]
    assert ["WARNING" in path.read_text() for path in scripts] == [False, False, True, True]
    assert not [name for name in contents(plain.directory) if "key" in name or name.endswith(".crt")]
    with pytest.raises(ConfigError, match="was made with --insecure"):
        provision(tmp_path / "plain", devices=2)
    with pytest.raises(ConfigError, match="no keys to register"):
        register(plain)


@contextmanager
def running(command: Command, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a session of its own, all of which is ended afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command.arguments, env=command.environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()  # Flower then ends its executor, which has a session of its own
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(done: Callable[[], object], seconds: float, log: Path) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        return [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


@pytest.mark.flower
def test_registered_devices_come_online_and_strangers_are_turned_away(tmp_path: Path) -> None:
    fleet, control, *ports = free_ports(6)
    where: dict[str, Any] = {"port": fleet, "control_port": control, "bind": "127.0.0.1"}
    site = provision(tmp_path / "site", ["127.0.0.1"], 2, **where)
    other = provision(tmp_path / "other", ["127.0.0.1"], 1, **where)  # a good key that this server does not know
    shutil.copy(site.server / "ca.crt", other.device(0) / "ca.crt")
    nodes = [
        supernode_command(owner, number, port=port, source=tmp_path / "spool", state=tmp_path / f"state-{port}")
        for owner, number, port in zip([site, site, other], [0, 1, 0], ports[:3], strict=True)
    ]
    programs = Path(sys.executable).parent  # a SuperNode starts others by their bare names
    path = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    bare = [str(programs / "flower-supernode"), "--insecure", "--max-wait-time", "1"]
    plain = Command([*bare, "--superlink", f"127.0.0.1:{fleet}", "--port", str(ports[3])], nodes[0].environment | path)
    with ExitStack() as stack:

        def start(command: Command, name: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(running(command, tmp_path / f"{name}.log"))

        start(superlink_command(site), "link")
        wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", control)) == 0, 60, tmp_path / "link.log")
        said: list[str] = []
        register(site, said.append)
        assert said == ["device-0: registered", "device-1: registered", "2 devices are registered, 2 of them now"]
        refused = [start(nodes[2], "stranger"), start(plain, "plain")]
        for number in (0, 1):
            start(nodes[number], f"node-{number}")
        wait_until(lambda: statuses(site) == {0: "online", 1: "online"}, 60, tmp_path / "node-0.log")
        assert [process.wait(60) for process in refused] == [1, 1]
        register(site, said.append)
        assert said[3:] == ["2 devices are registered, 0 of them now"]
    assert "Exit Code: 305" in (tmp_path / "stranger.log").read_text()
    assert "Exit Code: 305" in (tmp_path / "plain.log").read_text()
    assert (site.server / "state").stat().st_mode & 0o777 == 0o700
