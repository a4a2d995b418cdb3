"""What Flower is given to pack is what it would have packed from the whole clone, wherever the app's files are."""

import hashlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from sofed_flwr.launch.app_bundle import app_directory
from tests.support.federation import ROOT

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's affair
PACK = """
import hashlib
from flwr.cli.build import build_fab_from_disk
from sofed_flwr.config.compose import compose
from sofed_flwr.launch.app_bundle import app_directory
compose(["scale=smoke"])
with app_directory() as app:
    print(hashlib.sha256(build_fab_from_disk(app)).hexdigest())
"""


@pytest.fixture(scope="module")
def from_the_clone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What Flower packs from all the files of the clone, but for those it takes ten seconds to pass over."""
    clone = tmp_path_factory.mktemp("here") / "clone"
    shutil.copytree(ROOT, clone, ignore=shutil.ignore_patterns(".venv", ".git", ".mypy_cache", "outputs"))
    bundle: bytes = build_fab_from_disk(clone)
    return bundle


def test_flower_packs_the_same_app_from_the_copy_as_from_the_clone(from_the_clone: bytes) -> None:
    with app_directory() as app:
        assert {path.name for path in app.iterdir()} == {
            *("pyproject.toml", "client_app.py", "server_app.py", "sofed_flwr", "conf")
        }
        assert {path.suffix for path in app.rglob("*") if path.is_file()} == {".py", ".yaml", ".toml"}
        assert build_fab_from_disk(app) == from_the_clone
    assert not app.exists()


def test_the_apps_that_a_fleet_beside_it_has_received_are_not_packed() -> None:
    """A SuperLink keeps what it was given, and docs/devices.md has its site in the clone."""
    with app_directory() as app:
        alone = build_fab_from_disk(app)
        received = app / "fleet" / "server" / "flower" / "apps" / "sofed"
        shutil.copytree(app / "conf", received / "conf")
        shutil.copyfile(app / "client_app.py", received / "client_app.py")
        assert build_fab_from_disk(app) == alone
        with app_directory(app) as again:
            assert build_fab_from_disk(again) == alone


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    """The package as a wheel lays it out (`test_wheel.py` has a real one), beside files of another project."""
    shutil.copytree(ROOT / "sofed_flwr", tmp_path / "sofed_flwr", ignore=shutil.ignore_patterns("__pycache__"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for source, place in project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].items():
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copyfile
        (tmp_path / place).parent.mkdir(exist_ok=True)
        copy(ROOT / source, tmp_path / place)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("rounds: 5\n")
    (tmp_path / "client_app.py").write_text("app = None\n")
    (tmp_path / "pyproject.toml").write_text('project = {name = "another", version = "9"}\n')
    return tmp_path


def run(program: str, site_packages: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "ignore", "-c", program]
    return subprocess.run(command, cwd=site_packages, capture_output=True, text=True, check=False)


def test_an_installed_package_packs_the_same_app_as_the_clone(from_the_clone: bytes, site_packages: Path) -> None:
    done = run(PACK, site_packages)
    assert done.stdout.strip() == hashlib.sha256(from_the_clone).hexdigest(), done.stderr


def test_the_files_of_another_project_beside_the_package_are_not_taken_for_ours(site_packages: Path) -> None:
    shutil.rmtree(site_packages / "sofed_flwr" / "app")
    done = run("import sofed_flwr; sofed_flwr.__version__", site_packages)
    assert "sofed_flwr comes without the app's files (conf, client_app.py ...); install sofed-flwr again" in done.stderr
