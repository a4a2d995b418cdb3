"""Which directory `sofed provision` takes: a new one, an empty one, its own; and nothing of any other is changed."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sofed_flwr.cli import main as cli
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.fleet.provision.build import provision
from sofed_flwr.fleet.provision.site import Site


def order(place: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["provision", str(place), "--host", "server.lan", *arguments])


def look(place: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and directory: mode and content."""
    paths = [place, *place.rglob("*")]
    return {str(path): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"") for path in paths}


def refused(result: Result, reason: str) -> None:
    assert result.exit_code == 2, result.output
    assert reason in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("content", ["notes.txt", ".gitignore", "server/app.py", ".bashrc"])
def test_somebody_elses_directory_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    """A home, a clone, /tmp: it would lose its mode and all that git sees of it."""
    place = tmp_path / "home"
    (place / content).parent.mkdir(parents=True)
    (place / content).write_text("*.pyc\n")
    place.chmod(0o755)
    before = look(place)
    refused(order(place), "is not a site and not empty")
    assert look(place) == before


def test_a_new_and_an_empty_directory_are_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("empty", "new", "parent/new", "link"):
        assert order(tmp_path / name).exit_code == 0
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "target" / "server" / "sofed.env").exists()


def test_what_a_killed_first_run_left_is_continued_and_a_site_stays_one(tmp_path: Path) -> None:
    place = tmp_path / "site"
    place.mkdir()
    (place / ".gitignore.tmp").write_text("# Priv")  # killed at its first file
    assert order(place, "--devices", "1").exit_code == 0
    (place / ".gitignore").unlink()  # its owner's wish
    (place / "notes.txt").touch()
    assert order(place, "--devices", "2").exit_code == 0
    assert Site(place).devices == [0, 1]


def test_a_path_that_is_no_directory_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused(order(tmp_path / "file"), "is a file; a site needs a directory")
    refused(order(tmp_path / "file" / "site"), "cannot be made")
    refused(order(tmp_path / "loop"), "cannot be resolved")
    refused(order(tmp_path / ("x" * 300)), "cannot be made")
    refused(order(Path("/proc/site")), "cannot be made")


@pytest.mark.parametrize("name", ['a"b', "a'b", "a\\b", "a$b", "a\nb", "a\x1bb", os.fsdecode(b"a\xffb")])
def test_a_path_that_no_unit_can_hold_is_refused_before_anything_is_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="not allowed in a systemd unit") as caught:
        provision(tmp_path / name, ["server.lan"])
    assert str(caught.value).isprintable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    """Its owner could exchange what lies in it, keys too."""
    (tmp_path / "site").mkdir()
    os.chown(tmp_path / "site", 12345, 12345)
    refused(order(tmp_path / "site"), "belongs to user 12345")


HOLDER = """
import sys, time
from pathlib import Path
from sofed_flwr.fleet.provision.place import claimed
with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_two_at_once_on_one_directory_do_not_mix(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "site")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        refused(order(tmp_path / "site"), "another sofed provision works on")
        first.kill()
    assert order(tmp_path / "site").exit_code == 0


def test_a_read_only_site_is_read_and_its_extension_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provision(tmp_path / "site", ["server.lan"], 1)
    true_open = os.open

    def read_only(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return true_open(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    provision(tmp_path / "site", ["server.lan"], 1)  # nothing to write
    with pytest.raises(ConfigError, match=r"keys/device-1.pub.tmp|device-1.* cannot be made .*Read-only file system"):
        provision(tmp_path / "site", devices=2)


def test_a_moved_site_works_again_after_provisioning_it_there(tmp_path: Path) -> None:
    site = provision(tmp_path / "old", ["server.lan"], 1)
    secrets = (site.server / "server.key").read_bytes()
    shutil.move(site.directory, tmp_path / "new place")
    moved = provision(tmp_path / "new place")
    files = [moved.server / "flower" / "config.toml", moved.server / "sofed-superlink.service"]
    assert not [path for path in files if str(tmp_path / "old") in path.read_text()]
    assert (moved.server / "server.key").read_bytes() == secrets
