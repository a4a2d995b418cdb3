"""What Flower is given to pack is what it would have packed from the whole clone."""

import shutil
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from sofed_flwr.app_files import CLONE, app_directory
from sofed_flwr.component import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's affair


def test_flower_packs_the_same_app_from_the_copy_as_from_the_clone() -> None:
    with app_directory() as app:
        files = [path for path in app.rglob("*") if path.is_file()]
        assert {path.name for path in app.iterdir()} == {
            *("pyproject.toml", "client_app.py", "server_app.py", "sofed_flwr", "conf")
        }
        assert len(files) < 300
        assert build_fab_from_disk(app) == build_fab_from_disk(CLONE)
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


def test_without_a_clone_there_is_no_app(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"has no pyproject\.toml: runs are started from a clone"),
        app_directory(tmp_path),
    ):
        pass
