"""Hostile and broken .npz files: one sentence with the file's name, and no memory for what a header only claims."""

import io
import re
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sofed_flwr.analysis.fit import _labels
from sofed_flwr.build import build_dataset
from sofed_flwr.classifier.labels import Choice
from sofed_flwr.cli.main import app
from sofed_flwr.config.compose import compose
from sofed_flwr.datasets.npz import Npz
from tests.datasets.test_datasets import save_npz
from tests.support.models import encoder_of, unwatched


def npy(array: Any, **header: Any) -> bytes:
    """The bytes of a .npy file, with a header that may claim something else."""
    array = np.asarray(array)
    file = io.BytesIO()
    stated = np.lib.format.header_data_from_array_1_0(array) | header
    np.lib.format.write_array_header_2_0(file, stated)
    return file.getvalue() + array.tobytes()


def zipped(path: Path, compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Npz:
    """A dataset of four training and two test images, in which some members are other bytes."""
    images, labels = np.zeros((4, 8, 8, 3), np.uint8), np.arange(4)
    default = {
        "train_images": npy(images),
        "train_labels": npy(labels),
        "test_images": npy(images[:2]),
        "test_labels": npy(labels[:2]),
    }
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in (default | members).items():
            archive.writestr(f"{name}.npy", content)
    return Npz(path=str(path))


def truncated(path: Path) -> None:
    save_npz(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def plain_npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros((4, 8, 8, 3), np.uint8))


def text(path: Path) -> None:
    path.write_text("train_images,train_labels\n")


def empty(path: Path) -> None:
    path.touch()


def pickled(path: Path) -> None:
    path.write_bytes(b"\x80\x04cos\nsystem\n.")


def objects(path: Path) -> None:
    save_npz(path, train_labels=np.array([{}, 1, None, "x"], object))


def terabyte(path: Path) -> None:
    zipped(path, train_images=npy(np.zeros(10, np.uint8), shape=(10**8, 64, 64, 3)))


def overflowing(path: Path) -> None:
    zipped(path, train_images=npy(np.zeros(10, np.uint8), shape=(2**62, 8, 8, 3)))


def negative(path: Path) -> None:
    zipped(path, train_images=npy(np.zeros(10, np.uint8), shape=(-4, 8, 8, 3)))


def no_bytes_each(path: Path) -> None:
    zipped(path, train_labels=npy(np.zeros(0, "S1"), shape=(10**12,), descr="|S0"))


def long_header(path: Path) -> None:
    zipped(path, train_labels=b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b" " * 10**6)


def deep_header(path: Path) -> None:
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': " + b"-" * 5000 + b"1}"
    zipped(path, train_labels=b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)


def bomb(path: Path) -> None:
    """64 KB that unpack to 64 MB, honestly declared: the limit is the memory of the machine."""
    count = 2**26 // (64 * 64 * 3)
    head = npy(np.zeros(0, np.uint8), shape=(count, 64, 64, 3))
    zipped(path, train_images=head + bytes(count * 64 * 64 * 3), train_labels=npy(np.zeros(count, np.int64)))


def wrong_checksum(path: Path) -> None:
    zipped(path, zipfile.ZIP_STORED)
    content = path.read_bytes()
    place = content.index(b"\x93NUMPY") + 140
    path.write_bytes(content[:place] + b"x" + content[place + 1 :])


def folder(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path)


def names(*values: Any, **options: Any) -> Callable[[Path], None]:
    return lambda path: _save(path, class_names=np.array(values, **options))


def no_characters(path: Path) -> None:
    zipped(path, class_names=npy(np.full(4, 0x7FFFFFFF, np.uint32), descr="<U1"))


def labels(*values: Any) -> Callable[[Path], None]:
    return lambda path: _save(path, train_labels=np.array(values))


def _save(path: Path, **arrays: Any) -> None:
    save_npz(path, **arrays)


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (truncated, "not a readable .npz file"),
    "npy named npz": (plain_npy, "one .npy array, not an .npz file"),
    "text": (text, "not a readable .npz file"),
    "empty": (empty, "not a readable .npz file"),
    "pickle": (pickled, "not a readable .npz file"),
    "objects": (objects, "train_labels is object"),
    "terabyte": (terabyte, "train_images claims"),
    "overflow": (overflowing, "train_images claims"),
    "negative": (negative, "train_images"),
    "zero bytes each": (no_bytes_each, "with 1000000000000 labels"),
    "long header": (long_header, "train_labels"),
    "deep header": (deep_header, "train_labels"),
    "wrong checksum": (wrong_checksum, "train_images.*CRC"),
    "folder": (folder, "is not a file"),
    "symlink loop": (loop, "is not a file"),
    "label -1": (labels(0, 1, 2, -1), "train_labels holds -1, expected whole numbers from 0 to"),
    "label nan": (labels(0, 1, 2, np.nan), "train_labels holds nan"),
    "label inf": (labels(0, 1, 2, np.inf), "train_labels holds inf"),
    "label half": (labels(0, 1, 2, 0.5), r"train_labels holds 0\.5"),
    "label 2^63": (lambda path: _save(path, train_labels=np.array([0, 1, 2, 2**63], np.uint64)), "holds 92233720"),
    "label 2^40": (labels(0, 1, 2, 2**40), "train_labels holds 1099511627776"),
    "label text": (labels("a", "b", "c", "d"), r"train_labels is <U1"),
    "label complex": (labels(0, 1, 2, 1j), "train_labels is complex128"),
    "group -1": (lambda path: _save(path, train_groups=np.array([0, 0, 1, -1])), "train_groups holds -1"),
    "names as objects": (names("a", "b", "c", "d", dtype=object), r"class_names is object \(4,\), expected texts"),
    "names as bytes": (names(b"a", b"b", b"c", b"d"), r"class_names is \|S1"),
    "names in a table": (names(["a", "b"], ["c", "d"]), r"class_names is <U1 \(2, 2\)"),
    "too few names": (names("a"), "class_names holds 1 names, expected one for each label from 0 to 3"),
    "names twice": (names("a", "b", "c", "a"), "class_names holds a name twice"),
    "names of a terminal": (names("a", "b", "c", "\x1b[2J"), r"class_names holds '\\x1b\[2J', expected 1 to 100"),
    "long names": (names("a", "b", "c", "d" * 101), "class_names holds 'd+', expected 1 to 100 printable"),
    "no name": (names("a", "b", "c", ""), "class_names holds '', expected 1 to 100"),
    "no characters": (no_characters, "class_names cannot be read"),
    "no test images": (
        lambda path: _save(path, test_images=np.zeros((0, 8, 8, 3), np.uint8), test_labels=np.zeros(0, int)),
        "test_images is empty",
    ),
    "no pixels": (lambda path: _save(path, train_images=np.zeros((4, 0, 8, 3), np.uint8)), "at least 8 x 8"),
    "tiny images": (lambda path: _save(path, train_images=np.zeros((4, 2, 2, 3), np.uint8)), "at least 8 x 8"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_ends_the_command_with_one_sentence(name: str, tmp_path: Path) -> None:
    write, message = HOSTILE[name]
    file = tmp_path / "da[x]ta.npz"
    write(file)
    done = CliRunner().invoke(app, ["run", "dataset=npz", f"dataset.path='{file}'", f"out={tmp_path / 'run'}"])
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith(f"sofed: dataset.path='{file}'"), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert re.search(message, done.stderr), done.stderr
    assert not (tmp_path / "run").exists()


def test_a_bomb_is_refused_before_it_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sofed_flwr.datasets.npz_arrays._memory", lambda: 2**28)
    bomb(tmp_path / "data.npz")
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"train_images claims 0\.1 GB.*0\.3 GB of memory"):
        Npz(path=str(tmp_path / "data.npz")).load()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64, np.float32, bool])
def test_whole_numbers_of_any_type_are_labels(dtype: Any, tmp_path: Path) -> None:
    split = save_npz(tmp_path / "data.npz", train_labels=np.array([0, 1, 1, 0], dtype)).load()
    assert split.train.labels.dtype == np.int64
    assert split.train.labels.tolist() == [0, 1, 1, 0]


def test_compressed_and_fortran_ordered_arrays_are_read(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(256, size=(4, 8, 9, 3), dtype=np.uint8)
    test = np.zeros((2, 8, 9, 3), np.uint8)
    arrays = {"train_images": np.asfortranarray(images), "train_labels": np.arange(4), "test_images": test}
    np.savez_compressed(tmp_path / "data.npz", **arrays, test_labels=np.arange(2))
    split = Npz(path=str(tmp_path / "data.npz")).load()
    assert np.array_equal(split.train.images, images.transpose(0, 3, 1, 2))
    assert split.train.images.flags.c_contiguous


def test_a_classifier_answers_the_names_of_the_file(tmp_path: Path) -> None:
    assert save_npz(tmp_path / "data.npz").class_names is None
    file = save_npz(tmp_path / "data.npz", class_names=np.array(["ant", "bee", "cat", "dog", "never seen"]))
    found = _labels(
        encoder_of(), tmp_path, ["dataset=npz", f"dataset.path={tmp_path / 'data.npz'}"], Choice(), unwatched
    )
    assert found.classes == tuple(file.class_names or ())[:4] == ("ant", "bee", "cat", "dog")


def test_one_class_is_a_dataset_without_accuracies(tmp_path: Path) -> None:
    save_npz(tmp_path / "data.npz", train_labels=np.zeros(4, int), test_labels=np.zeros(2, int))
    split = build_dataset(compose(["dataset=npz", f"dataset.path={tmp_path / 'data.npz'}"]))
    assert split.train.labels.tolist() == [0] * 4
