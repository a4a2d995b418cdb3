"""The cache of decoded images: damage is noticed and repaired, and nobody else's folder is believed."""

import errno
import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sofed_flwr.cli.main import app
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import LabeledImages, Split
from sofed_flwr.datasets import cache
from sofed_flwr.datasets.cache import open_split


class Counting:
    """A dataset that counts how often it is decoded."""

    def __init__(self) -> None:
        self.loads = 0

    def fingerprint(self) -> str:
        return "counting"

    def load(self) -> Split:
        self.loads += 1
        images = np.arange(8 * 3 * 8 * 8, dtype=np.uint32).reshape(8, 3, 8, 8).astype(np.uint8)
        return Split(LabeledImages(images, np.arange(8)), LabeledImages(images[:2], np.arange(2)))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOFED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def folder_in(root: Path) -> Path:
    (found,) = (path for path in root.iterdir() if re.fullmatch(r"[0-9a-f]{16}", path.name))
    return found


def content(split: Split) -> list[bytes]:
    return [array.tobytes() for half in (split.train, split.test) for array in (half.images, half.labels, half.groups)]


def keeping_times(change: Callable[[Path], None]) -> Callable[[Path], None]:
    """What a failing disk does: other bytes, the same size and times."""

    def rot(file: Path) -> None:
        status = file.stat()
        change(file)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    return rot


def flip(file: Path, place: int = -5) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 16
    file.write_bytes(data)


def foreign(file: Path) -> None:
    np.save(file, np.zeros((3, 3, 8, 8), np.uint8))


def folder_instead(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGE: dict[str, Callable[[Path], None]] = {
    "empty": lambda file: file.write_bytes(b""),
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "one byte": flip,
    "one byte, same times": keeping_times(flip),
    "header, same times": keeping_times(lambda file: flip(file, 20)),
    "missing": Path.unlink,
    "foreign": foreign,
    "a folder": folder_instead,
}


@pytest.mark.parametrize("name", ["train_images.npy", "test_labels.npy", "manifest.json"])
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_noticed_and_repaired(kind: str, name: str, root: Path) -> None:
    dataset = Counting()
    whole = content(open_split(dataset))
    DAMAGE[kind](folder_in(root) / name)
    assert content(open_split(dataset)) == whole
    assert content(open_split(dataset, thorough=False)) == whole
    assert dataset.loads == 2 or name == "manifest.json"


def test_rot_below_the_times_costs_devices_no_reading_and_is_found_by_the_process_that_checks(root: Path) -> None:
    dataset = Counting()
    whole = content(open_split(dataset))
    keeping_times(flip)(folder_in(root) / "train_images.npy")
    assert content(open_split(dataset, thorough=False)) != whole, "devices compare sizes and times only"
    assert content(open_split(dataset)) == whole


def test_a_file_where_the_folder_belongs_is_replaced(root: Path) -> None:
    whole = content(open_split(Counting()))
    folder = folder_in(root)
    shutil.rmtree(folder)
    folder.write_text("not a folder")
    assert content(open_split(Counting())) == whole


def test_a_copied_cache_is_checked_once_and_not_decoded_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Counting()
    open_split(dataset)
    folder = folder_in(root)
    for file in folder.iterdir():
        os.utime(file, (1, 1))
    open_split(dataset, thorough=False)
    assert dataset.loads == 1
    monkeypatch.setattr(cache, "_digest", lambda file: pytest.fail("checked again"))
    open_split(dataset, thorough=False)


def test_of_several_processes_that_find_damage_one_decodes(root: Path) -> None:
    dataset = Counting()
    whole = content(open_split(dataset))
    DAMAGE["truncated"](folder_in(root) / "test_images.npy")
    seen: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: seen.append(content(open_split(dataset)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [whole] * 4
    assert dataset.loads == 2


def test_what_a_killed_process_left_half_filled_is_removed(root: Path) -> None:
    open_split(Counting())
    folder = folder_in(root)
    folder.rename(folder.with_name(f".filling-{folder.name}"))
    open_split(Counting())
    assert sorted(path.suffix or path.name for path in root.iterdir()) == [".lock", folder.name]


def test_everything_is_on_disk_before_the_folder_gets_its_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def recorded(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        fsync(handle)

    def renamed(self: Path, target: Path) -> Path:
        synced.append("renamed")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", recorded)
    monkeypatch.setattr(Path, "rename", renamed)
    open_split(Counting())
    arrays = {f"{half}_{part}.npy" for half in cache.HALVES for part in cache.PARTS}
    assert arrays | {f".filling-{folder_in(root).name}"} < set(synced[: synced.index("renamed")])


def test_a_new_cache_is_the_users_alone(root: Path) -> None:
    before = os.umask(0)
    try:
        open_split(Counting())
    finally:
        os.umask(before)
    assert root.stat().st_mode & 0o777 == folder_in(root).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_may_write_is_refused(mode: int, root: Path) -> None:
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(ConfigError, match=rf"^{root}: other users may write to this cache.*chmod go-w.*SOFED_CACHE"):
        open_split(Counting())
    assert not list(root.iterdir())


def test_another_users_folder_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir(mode=0o755)
    if os.geteuid() == 0:
        os.chown(root, 4711, -1)
    else:
        mine = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(ConfigError, match=rf"^{root}: .*cache belongs to another user.*SOFED_CACHE"):
        open_split(Counting())


def test_a_cache_that_cannot_be_written_says_so_and_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(np, "save", full)
        with pytest.raises(ConfigError, match=rf"^{root}: .*cannot be written \(.*No space left.*SOFED_CACHE"):
            open_split(Counting())
    assert [path.suffix for path in root.iterdir()] == [".lock"]
    root.joinpath("file").touch()
    monkeypatch.setenv("SOFED_CACHE", str(root / "file"))
    with pytest.raises(ConfigError, match=r"file: .*cannot be written"):
        open_split(Counting())


def test_the_command_says_what_is_wrong_with_the_cache_and_not_with_the_dataset(root: Path) -> None:
    root.mkdir()
    root.chmod(0o777)
    done = CliRunner().invoke(app, ["run", "scale=smoke", f"out={root.parent / 'run'}"])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"sofed: {root}: other users may write")
    assert done.stderr.count("\n") == 1


def test_the_manifest_names_size_time_and_digest(root: Path) -> None:
    open_split(Counting())
    manifest = json.loads((folder_in(root) / "manifest.json").read_text())
    assert manifest["train_images.npy"].keys() == {"bytes", "mtime_ns", "blake2b"}
