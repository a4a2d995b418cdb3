"""Flower's copy of the app, torn by a full disk or a power cut: gone at the next start or failure; the doctor sees it.

The bundle is this app's own, packed and installed by Flower.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.install import install_from_fab
from flwr.common.config import parse_config_args

from sofed_flwr.fleet.doctor.apps import check_apps
from sofed_flwr.fleet.provision.build import provision
from sofed_flwr.fleet.provision.site import Site
from sofed_flwr.launch.app_bundle import app_directory
from tests.support.fleet_processes import superlink_command, supernode_command

PROGRAMS = Path(sys.executable).parent
SOURCES = {".py", ".toml", ".yaml"}


@pytest.fixture(scope="module")
def bundle() -> bytes:
    with app_directory() as folder:
        return build_fab_from_disk(folder)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return provision(tmp_path / "site", ["127.0.0.1"], 1)


def install(bundle: bytes, home: Path) -> Path:
    return install_from_fab(bundle, install_dir=home, skip_prompt=True)


def tear(copy: Path) -> None:
    """As a full disk does: directories, names and the first files are there, the content of the others is not."""
    content = [path for path in sorted(copy.rglob("*")) if path.suffix in SOURCES and path.stat().st_size]
    files = [path for path in content if path.name != "__init__.py"]  # which may well be empty
    for path in files[: len(files) // 2]:
        path.write_bytes(b"")


def stub(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_flower_trusts_a_torn_copy_and_makes_another_when_it_is_gone(bundle: bytes, tmp_path: Path) -> None:
    """What the remedy rests on; if Flower checks its copies one day, the remedy can go."""
    copy = install(bundle, tmp_path)
    tear(copy)
    assert install(bundle, tmp_path) == copy
    assert (copy / "client_app.py").read_bytes() == b""
    subprocess.run(["rm", "-rf", tmp_path / "apps"], check=True)
    assert (install(bundle, tmp_path) / "client_app.py").read_bytes()


def test_a_start_removes_the_copies(bundle: bytes, site: Site, tmp_path: Path) -> None:
    stub(tmp_path / "bin", "flower-supernode", "")
    stub(tmp_path / "bin", "python", f'case "$*" in *superlink*) exit 0 ;; esac; exec "{PROGRAMS}/python" "$@"')
    commands = {
        site.server / "flower": superlink_command(site),
        tmp_path / "state" / "flower": supernode_command(site, 0, source=tmp_path, state=tmp_path / "state"),
    }
    for home, command in commands.items():
        tear(install(bundle, home))
        environment = command.environment | {"SOFED_BIN": str(tmp_path / "bin")}
        subprocess.run(command.arguments, env=environment, check=True)
        assert not (home / "apps").exists()


def test_a_devices_owner_adds_node_config_in_its_settings(site: Site, tmp_path: Path) -> None:
    stub(tmp_path / "bin", "flower-supernode", 'printf "%s\\n" "$@"')
    stub(tmp_path / "bin", "python", f'exec "{PROGRAMS}/python" "$@"')
    node = supernode_command(site, 0, source=Path("/my spool"), state=tmp_path / "state")
    more = {"SOFED_BIN": str(tmp_path / "bin"), "SOFED_THREADS": "1", "SOFED_NODE_CONFIG": "key=5 text='a b'"}
    said = subprocess.run(node.arguments, env=node.environment | more, check=True, capture_output=True, text=True)
    words = said.stdout.splitlines()
    config = parse_config_args([words[words.index("--node-config") + 1]])
    assert config == {
        **{"device-id": 0, "source": "spool:/my spool", "state-dir": str(tmp_path / "state"), "threads": 1},
        **{"key": 5, "text": "a b"},
    }
    more["SOFED_SOURCE"] = "camera:0"
    said = subprocess.run(node.arguments, env=node.environment | more, check=True, capture_output=True, text=True)
    assert "source='camera:0' state-dir=" in said.stdout, "another source than the spool"


def test_a_second_start_leaves_the_first_ones_copies_alone(bundle: bytes, site: Site, tmp_path: Path) -> None:
    stub(tmp_path / "bin", "flower-supernode", "echo up; exec sleep 60")
    stub(tmp_path / "bin", "python", f'exec "{PROGRAMS}/python" "$@"')
    node = supernode_command(site, 0, source=tmp_path, state=tmp_path / "state")
    environment = node.environment | {"SOFED_BIN": str(tmp_path / "bin")}
    with subprocess.Popen(node.arguments, env=environment, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"up\n"
        copy = install(bundle, tmp_path / "state" / "flower")
        second = subprocess.run(node.arguments, env=environment, capture_output=True, text=True)
        assert (second.returncode, second.stderr.count("\n")) == (1, 1)
        assert "already running" in second.stderr
        assert copy.exists()
        first.kill()


@pytest.mark.parametrize(("ending", "kept"), [("exit 0", True), ("exit 1", False), ("kill -9 $$", False)])
def test_a_task_that_fails_takes_its_copy_along(
    bundle: bytes, site: Site, tmp_path: Path, ending: str, kept: bool
) -> None:
    """A disk that was full for a while costs the task it met, not every later one."""
    stub(tmp_path / "bin", "flwr-clientapp", f'echo "$@"; {ending}')
    copy = install(bundle, tmp_path / "home")
    environment = os.environ | {"SOFED_BIN": str(tmp_path / "bin"), "FLWR_HOME": str(tmp_path / "home")}
    shim = site.device(0) / "bin" / "flwr-clientapp"
    result = subprocess.run([shim, "--token", "a b"], env=environment, capture_output=True, text=True)
    assert result.stdout == "--token a b\n"
    assert (result.returncode == 0) is kept
    assert copy.exists() is kept


def test_the_doctor_accepts_a_whole_copy(bundle: bytes, tmp_path: Path) -> None:
    assert check_apps(tmp_path, "restart").seen.startswith("0 copies")
    copy = install(bundle, tmp_path)
    subprocess.run([sys.executable, "-m", "compileall", "-q", copy], check=True)  # as running it does
    assert check_apps(tmp_path, "restart").seen.startswith("1 copies")


@pytest.mark.parametrize("damage", ["cut", "zeros", "missing", "changed"])
def test_the_doctor_sees_a_single_damaged_file(bundle: bytes, tmp_path: Path, damage: str) -> None:
    copy = install(bundle, tmp_path)
    path = copy / ("pyproject.toml" if damage == "missing" else "sofed_flwr/device/participant.py")
    content = path.read_bytes()
    path.unlink()
    left = {"cut": content[: content.index(b"\n") + 1], "zeros": bytes(len(content)), "changed": content + b"#\n"}
    if damage in left:
        path.write_bytes(left[damage])
    finding = check_apps(tmp_path, "restart")
    assert (finding.verdict, finding.remedy) == ("fail", "restart")
    assert f"{copy} is not what the server sent" in finding.seen
