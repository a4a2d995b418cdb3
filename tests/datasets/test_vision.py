"""CIFAR and SVHN through torchvision's own code, on tiny archives and without a network."""

import errno
import re
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
from torchvision import datasets
from typer.testing import CliRunner

from sofed_flwr.build import build_dataset, build_streams, check
from sofed_flwr.cli import main as cli
from sofed_flwr.config.compose import compose
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import Split
from sofed_flwr.datasets import vision
from sofed_flwr.datasets.download import TIMEOUT_SECONDS
from tests.support.published import COUNTS, write_published

ARCHIVES = {
    "cifar10": "cifar-10-python.tar.gz",
    "cifar100": "cifar-100-python.tar.gz",
    "svhn": "train_32x32.mat",
}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    monkeypatch.setenv("SOFED_CACHE", str(tmp_path / "cache"))


def opened(name: str, root: Path, *overrides: str) -> Split:
    return build_dataset(compose([f"dataset={name}", f"dataset.root={root}", *overrides]))


@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.parametrize("download", ["true", "false"])
def test_archives_in_place_are_read_without_a_network(
    name: str, download: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_published(name, tmp_path / "root", monkeypatch)
    split = opened(name, tmp_path / "root", f"dataset.download={download}")
    for half, count in ((split.train, COUNTS["train"]), (split.test, COUNTS["test"])):
        assert isinstance(half.images, np.memmap)
        assert half.images.shape == (count, 3, 32, 32)
        assert half.labels.tolist() == half.groups.tolist() == [i % 10 for i in range(count)]
    if name != "svhn":
        assert split.test.images[7, :, 3, 4].tolist() == [7, 100, 200]


def test_extracted_files_need_no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_published("cifar10", tmp_path / "root", monkeypatch)
    opened("cifar10", tmp_path / "root")
    (tmp_path / "root" / ARCHIVES["cifar10"]).unlink()
    monkeypatch.setenv("SOFED_CACHE", str(tmp_path / "other cache"))
    assert len(opened("cifar10", tmp_path / "root").train) == COUNTS["train"]


@pytest.mark.parametrize("file", ["data_batch_2", "batches.meta"])
def test_a_damaged_extracted_file_is_extracted_again(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_published("cifar10", tmp_path / "root", monkeypatch)
    opened("cifar10", tmp_path / "root")
    (tmp_path / "root" / "cifar-10-batches-py" / file).write_bytes(b"half")
    monkeypatch.setenv("SOFED_CACHE", str(tmp_path / "other cache"))
    assert len(opened("cifar10", tmp_path / "root").train) == COUNTS["train"]


def test_what_is_decoded_needs_neither_archive_nor_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_published("svhn", tmp_path / "root", monkeypatch)
    first = opened("svhn", tmp_path / "root")
    again = opened("svhn", tmp_path / "nowhere")
    assert np.array_equal(first.train.images, again.train.images)
    assert not (tmp_path / "nowhere").exists()


def test_superclasses_order_the_stream_and_fine_labels_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_published("cifar100", tmp_path / "root", monkeypatch)
    overrides = ["dataset=cifar100", f"dataset.root={tmp_path / 'root'}", "clients=2", "buffer=4", "stream.stc=25"]
    config = compose([*overrides, "dataset.stream_classes=superclass"])
    train = build_dataset(config).train
    assert train.labels.tolist() == [i % 10 for i in range(50)]
    assert train.groups.tolist() == [i % 10 // 5 for i in range(50)]
    streams = build_streams(config, train.groups)
    assert sorted(np.unique(train.groups[stream]).tolist() for stream in streams) == [[0], [1]]
    fine = build_dataset(compose(overrides)).train
    assert fine.groups.tolist() == fine.labels.tolist()


@pytest.mark.parametrize("name", ARCHIVES)
def test_without_archive_and_network_one_sentence_says_what_to_do(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        opened(name, tmp_path / "root")
    sentence = str(refusal.value)
    assert sentence.startswith(f"dataset.root={tmp_path / 'root'}: ")
    assert f"needs {ARCHIVES[name]} in this folder, which is not there and cannot be downloaded" in sentence
    assert "no route to host" in sentence
    assert f"/{ARCHIVES[name]} there, or use dataset=npz" in sentence
    assert "\n" not in sentence
    assert list((tmp_path / "root").iterdir()) == []


def test_without_download_nothing_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"which is not there and dataset\.download is false; put the file from"):
        opened("cifar10", tmp_path / "root", "dataset.download=false")
    assert not (tmp_path / "root").exists()


def test_a_damaged_archive_is_named_and_left_alone(tmp_path: Path) -> None:
    archive = tmp_path / ARCHIVES["cifar100"]
    archive.write_bytes(b"half of it")
    with pytest.raises(ConfigError, match=r"cifar-100-python.tar.gz in this folder, which is damaged \(its checksum"):
        opened("cifar100", tmp_path, "dataset.download=false")
    assert archive.read_bytes() == b"half of it"


class Answer:
    """A server's reply that ends, or breaks off, after `content`."""

    def __init__(self, url: str, content: bytes, breaks: bool) -> None:
        self.url, self.length, self._parts = url, len(content), [content, *([] if breaks else [b""])]

    def read(self, _: int) -> bytes:
        if not self._parts:
            raise TimeoutError("timed out")
        return self._parts.pop(0)

    def __enter__(self) -> "Answer":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def serving(content: bytes, breaks: bool = False) -> Callable[..., Answer]:
    def answer(request: Any) -> Answer:
        assert socket.getdefaulttimeout() == TIMEOUT_SECONDS
        return Answer(request.full_url, content, breaks)

    return answer


@pytest.mark.parametrize(
    ("content", "breaks", "reason"), [(b"half", True, "timed out"), (b"an error page", False, "corrupted")]
)
def test_a_broken_download_leaves_nothing_behind(
    content: bytes, breaks: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", serving(content, breaks))
    with pytest.raises(ConfigError, match=f"cannot be downloaded .*{reason}"):
        opened("cifar10", tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []
    assert socket.getdefaulttimeout() is None


def test_a_download_is_kept_and_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_published("cifar10", tmp_path / "server", monkeypatch)
    content = (tmp_path / "server" / ARCHIVES["cifar10"]).read_bytes()
    monkeypatch.setattr(urllib.request, "urlopen", serving(content))
    assert len(opened("cifar10", tmp_path / "root").train) == COUNTS["train"]
    names = {path.name for path in (tmp_path / "root").iterdir()}
    assert names == {ARCHIVES["cifar10"], datasets.CIFAR10.base_folder}


@pytest.mark.parametrize(
    ("root", "reason"),
    [
        ("/dev/null/folder", "cannot be downloaded .*Not a directory"),
        ("/proc/folder", "cannot be downloaded"),
        ("~nobody-has-this-name/folder", "home directory"),
    ],
)
def test_a_folder_that_cannot_be_written_is_one_sentence(root: str, reason: str) -> None:
    done = CliRunner().invoke(cli.app, ["run", "dataset=cifar10", f"dataset.root='{root}'"])
    assert done.exit_code == 2, done.output
    assert re.match(f"sofed: dataset.root={root}: .*{reason}", done.stderr), done.stderr
    assert done.stderr.count("\n") == 1


def test_a_disk_that_is_full_while_unpacking_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_published("cifar10", tmp_path / "root", monkeypatch)
    monkeypatch.setattr(vision, "extract_archive", full)
    with pytest.raises(ConfigError, match=r"cifar-10-python.tar.gz in this folder, which cannot be unpacked .*space"):
        opened("cifar10", tmp_path / "root")


def test_what_a_killed_download_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_published("cifar10", tmp_path / "server", monkeypatch)
    content = (tmp_path / "server" / ARCHIVES["cifar10"]).read_bytes()
    monkeypatch.setattr(urllib.request, "urlopen", serving(content))
    part = tmp_path / "root" / f".{ARCHIVES['cifar10']}.part"
    part.parent.mkdir()
    part.write_bytes(2 * content)
    assert len(opened("cifar10", tmp_path / "root").train) == COUNTS["train"]
    assert not part.exists()


def test_svhn_without_scipy_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vision, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"SVHN's files need scipy; pip install 'sofed-flwr\[svhn\]'"):
        opened("svhn", tmp_path)


def test_the_command_ends_with_code_2(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        cli.app(["run", "dataset=cifar10", f"out={tmp_path / 'run'}"])
    assert ending.value.code == 2
    assert "sofed: dataset.root=" in capfd.readouterr().err


def test_a_run_on_cifar_can_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_published("cifar10", tmp_path / "root", monkeypatch)
    check(compose([f"out={tmp_path / 'run'}", "dataset=cifar10", f"dataset.root={tmp_path / 'root'}", "buffer=8"]))
