"""`sofed doctor`: each check is shown what is wrong, for real, and must say so with its remedy."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sofed_flwr.cli import main as cli
from sofed_flwr.fleet.doctor import clock, machine, network, storage, trust
from sofed_flwr.fleet.doctor.examination import device_settings
from sofed_flwr.fleet.doctor.finding import Finding
from sofed_flwr.fleet.provision.build import provision
from sofed_flwr.fleet.provision.certificates import server_certificate
from sofed_flwr.fleet.provision.registration import register
from sofed_flwr.fleet.provision.site import Site
from tests.fleet.test_provision import free_ports, running, wait_until
from tests.support.fleet_processes import superlink_command


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return provision(tmp_path / "site", ["127.0.0.1"], 1)


@contextmanager
def tls_server(site: Site) -> Iterator[str]:
    """Something that speaks TLS with the site's certificate; its address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(site.server / "server.crt", site.server / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                context.wrap_socket(listener.accept()[0], server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


def certify(site: Site, start: datetime, *hosts: str) -> None:
    """Give the site a server certificate as it would have been issued at `start`."""
    keys = (site.server / "server.key").read_bytes(), (site.authority / "ca.key").read_bytes()
    (site.server / "server.crt").write_bytes(server_certificate(*keys, hosts or ["127.0.0.1"], start))


def test_a_good_certificate_is_shown_with_its_days(site: Site) -> None:
    with tls_server(site) as address:
        reached, certificate = network.check_server(address, site.device(0) / "ca.crt")
    assert (reached.verdict, certificate.verdict) == ("ok", "ok")
    assert "824 days left" in certificate.seen or "825 days left" in certificate.seen


@pytest.mark.parametrize(
    ("age", "hosts", "verdict", "seen", "remedy"),
    [
        (timedelta(days=800), ["127.0.0.1"], "warn", "25 days left", "sofed provision DIR"),
        (timedelta(days=900), ["127.0.0.1"], "fail", "certificate has expired", "sofed provision DIR"),
        (timedelta(days=-9), ["127.0.0.1"], "fail", "certificate is not yet valid", "this clock is behind"),
        (timedelta(0), ["server.lan"], "fail", "IP address mismatch", "sofed provision DIR --host ADDRESS"),
    ],
)
def test_a_certificate_that_does_not_fit_is_named_with_its_remedy(
    site: Site, age: timedelta, hosts: list[str], verdict: str, seen: str, remedy: str
) -> None:
    certify(site, datetime.now(UTC) - age, *hosts)
    with tls_server(site) as address:
        *_, finding = network.check_server(address, site.device(0) / "ca.crt")
    assert finding.verdict == verdict
    assert seen in finding.seen
    assert remedy in finding.remedy


def test_the_authority_of_another_site_is_recognised(site: Site, tmp_path: Path) -> None:
    other = provision(tmp_path / "other", ["127.0.0.1"], 1)
    with tls_server(site) as address:
        *_, finding = network.check_server(address, other.device(0) / "ca.crt")
    assert finding.verdict == "fail"
    assert "ca.crt is another site's" in finding.remedy


def test_a_server_that_is_not_there_is_told_from_a_name_that_is_unknown(site: Site) -> None:
    (refused,) = network.check_server(f"127.0.0.1:{free_ports(1)[0]}", site.device(0) / "ca.crt")
    assert refused.verdict == "fail"
    assert "run its start.sh" in refused.remedy
    (unknown,) = network.check_server("no-such-host.invalid:9092", site.device(0) / "ca.crt")
    assert unknown.verdict == "fail"
    assert "/etc/hosts" in unknown.remedy


def test_a_port_without_tls_is_recognised(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with suppress(OSError), listener.accept()[0] as peer:
                peer.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

        (thread := threading.Thread(target=answer)).start()
        *_, finding = network.check_server(f"127.0.0.1:{listener.getsockname()[1]}", site.device(0) / "ca.crt")
        thread.join(10)
    assert finding.verdict == "fail"
    assert "--insecure" in finding.remedy


def test_torch_runs_in_a_child_of_its_own() -> None:
    assert machine.check_torch().verdict == "ok"


@pytest.mark.parametrize(
    ("module", "seen", "remedy"),
    [
        ("import os; os.kill(os.getpid(), 4)", "died by signal 4 (SIGILL)", "2.11 or newer"),
        ("import os; os.kill(os.getpid(), 9)", "died by signal 9 (SIGKILL)", "swap"),
        ("raise ImportError('libgomp.so.1: cannot open')", "libgomp.so.1: cannot open", "pip install torch"),
    ],
)
def test_a_torch_that_kills_its_process_is_a_finding_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, seen: str, remedy: str
) -> None:
    (tmp_path / "torch.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = machine.check_torch()
    assert finding.verdict == "fail"
    assert seen in finding.seen
    assert remedy in finding.remedy


def test_an_old_python_and_missing_programs_fail(tmp_path: Path) -> None:
    assert machine.check_python((3, 10, 12)) == Finding(
        "Python", "fail", "3.10.12, 3.11 or newer is needed", "JetPack 6 has 3.10: use its containers or uv"
    )
    finding = machine.check_flower(tmp_path)
    assert finding.verdict == "fail"
    assert "flower-superexec" in finding.seen


@pytest.mark.parametrize(("available", "verdict"), [(4000, "ok"), (999, "warn"), (499, "fail")])
def test_memory_is_what_the_kernel_could_give(tmp_path: Path, available: int, verdict: str) -> None:
    table = tmp_path / "meminfo"
    table.write_text(f"MemTotal: 8000000 kB\nMemFree: 1000 kB\nMemAvailable: {available * 1024} kB\n")
    assert machine.check_memory(table).verdict == verdict


def test_a_clock_nobody_steers_is_a_warning() -> None:
    assert [machine.check_ntp(state).verdict for state in (0, 5, None)] == ["ok", "warn", "unknown"]


def test_a_state_directory_must_take_a_commit_and_be_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert storage.check_state(tmp_path).verdict == "ok"
    assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(0o755)
    assert "0755" in storage.check_state(tmp_path).seen
    unwritable = storage.check_state(Path("/proc"))  # where not even root writes
    assert unwritable.verdict == "fail"
    assert "cannot be written" in unwritable.seen
    assert storage.check_state(tmp_path / "missing").verdict == "fail"


def test_a_key_must_be_there_private_and_a_key(site: Site) -> None:
    key = site.device(0) / "key"
    assert trust.check_device_key(key).seen.endswith("0600, ecdsa-sha2-nistp384")
    key.chmod(0o644)
    assert trust.check_device_key(key) == Finding(
        "key", "fail", f"{key} has mode 0644, expected 0600", f"chmod 0600 {key}"
    )
    key.chmod(0o600)
    key.write_bytes(b"-----BEGIN NOTHING-----")
    assert "is not a private key" in trust.check_device_key(key).seen
    key.unlink()
    assert "does not exist" in trust.check_device_key(key).seen


def test_a_spool_must_be_a_directory_and_an_empty_one_is_only_a_warning(tmp_path: Path) -> None:
    assert storage.check_source(f"spool:{tmp_path}/missing").verdict == "fail"
    assert storage.check_source(f"spool:{tmp_path}").verdict == "warn"
    (tmp_path / "image.png").touch()
    assert storage.check_source(f"spool:{tmp_path}").seen == f"{tmp_path} holds 1 files"


def test_a_source_without_a_scheme_fails_and_another_kind_is_left_to_the_first_round(tmp_path: Path) -> None:
    finding = storage.check_source(str(tmp_path))
    assert (finding.verdict, finding.remedy) == ("fail", f"write spool:{tmp_path}")
    assert [storage.check_source(source).verdict for source in ("dataset", "microscope:1")] == ["warn", "warn"]


def test_a_devices_source_is_its_spool_unless_its_settings_name_another(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device_settings(site.device(0), {})["SOFED_SOURCE"] == "spool:/var/spool/sofed"
    monkeypatch.setenv("SOFED_SOURCE", "camera:0")
    assert device_settings(site.device(0), {})["SOFED_SOURCE"] == "camera:0"


def test_a_camera_that_gives_no_frame_fails() -> None:
    finding = storage.check_source("camera:/dev/null")  # a character device, like a camera
    assert finding.verdict == "fail"
    assert "camera /dev/null" in finding.seen


def test_the_command_fails_for_a_device_that_cannot_reach_its_server(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "check_torch", lambda: Finding("torch", "ok", "", ""))
    (tmp_path / "state").mkdir(mode=0o700)
    places = ["--state-dir", str(tmp_path / "state"), "--source", f"spool:{tmp_path}"]
    closed = f"127.0.0.1:{free_ports(1)[0]}"
    result = CliRunner().invoke(
        cli.app, ["doctor", "--site", str(site.device(0)), "--superlink", closed, *places], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 1
    assert "answer" in result.output
    nothing = CliRunner().invoke(cli.app, ["doctor", "--site", str(tmp_path)])
    assert nothing.exit_code == 2
    assert "SOFED_SUPERLINK is unknown" in nothing.stderr


@pytest.mark.flower
def test_against_a_real_server_the_clock_is_measured_and_keys_are_found_missing(tmp_path: Path) -> None:
    fleet, control = free_ports(2)
    site = provision(tmp_path / "site", ["127.0.0.1"], 1, port=fleet, control_port=control, bind="127.0.0.1")
    address, authority = f"127.0.0.1:{fleet}", site.device(0) / "ca.crt"

    def off_by(seconds: float) -> Callable[[], datetime]:
        return lambda: datetime.now(UTC) + timedelta(seconds=seconds)

    with running(superlink_command(site), tmp_path / "log"):
        wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", control)) == 0, 60, tmp_path / "log")
        assert clock.check_against_server(address, authority).verdict == "ok"
        found = {seconds: clock.check_against_server(address, authority, off_by(seconds)) for seconds in (3600, -3600)}
        assert [finding.verdict for finding in found.values()] == ["fail", "fail"]
        late = clock.check_against_server(address, authority, off_by(-200))
        assert late.verdict == "warn"
        assert 199 <= float(late.seen.split()[0]) <= 202
        assert network.check_registered(site).seen == "not registered: device-0"
        register(site, lambda _: None)
        assert network.check_registered(site).seen == "1 devices, 0 of them online"
        result = CliRunner().invoke(cli.app, ["doctor", "--site", str(site.directory)], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
    assert network.check_registered(site).verdict == "fail"
