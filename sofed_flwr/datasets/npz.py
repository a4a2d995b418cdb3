"""Any dataset in one .npz file with MedMNIST's keys."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from sofed_flwr.core.records import LabeledImages, Labels, Pixels, Split
from sofed_flwr.datasets.npz_arrays import NpzArrays

SMALLEST = 8
"""Pixels of a side; the encoders halve it three times."""
CLASSES = 100_000
"""More than any image dataset has; votes and classifiers take memory for every number up to the largest."""
LONGEST_NAME = 100
"""Characters of a class's name."""


@dataclass(frozen=True)
class Npz:
    """`train_images`, `train_labels`, `test_images`, `test_labels`; images uint8, (n, H, W, 3) or gray (n, H, W).

    With `train_groups` (n,) the stream is ordered and dealt by these, CIFAR-100's superclasses for example. Texts in
    `class_names` (classes,) are what a classifier answers; without them it answers the numbers.
    """

    path: str

    def fingerprint(self) -> str:
        """Path, size and time of last change."""
        status = self._file().stat()
        return f"npz:{self._file().resolve()}:{status.st_size}:{status.st_mtime_ns}"

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """In the order of their labels; None if the file names none."""
        with self._arrays() as arrays:
            return _class_names(arrays)

    def load(self) -> Split:
        """Read both halves; what is missing or misshapen is named, wrong names of classes as well."""
        with self._arrays() as arrays:
            split = Split(_half(arrays, "train"), _half(arrays, "test"))
            _class_names(arrays)
        return split

    @contextmanager
    def _arrays(self) -> Iterator[NpzArrays]:
        file = self._file()
        try:
            with NpzArrays(file) as arrays:
                yield arrays
        except ValueError as error:
            raise ValueError(f"path={self.path!r}: {error}") from error

    def _file(self) -> Path:
        try:
            file = Path(self.path).expanduser()
        except RuntimeError as error:
            raise ValueError(f"path={self.path!r}: {error}") from error
        if not file.is_file():
            raise ValueError(f"path={self.path!r} is not a file; dataset=npz needs dataset.path=FILE.npz")
        return file


def _class_names(arrays: NpzArrays) -> tuple[str, ...] | None:
    """Somebody else's text, which tables and models will show: printable, short, each once, and one per label."""
    if "class_names" not in arrays:
        return None
    shape, dtype, _ = arrays.header("class_names")
    if dtype.kind != "U" or len(shape) != 1 or shape[0] > CLASSES:
        raise ValueError(f"class_names is {dtype} {shape}, expected texts (classes,)")
    names = arrays.texts("class_names")
    for name in names:
        if not name or not name.isprintable() or len(name) > LONGEST_NAME:
            shown = repr(name[:LONGEST_NAME])
            raise ValueError(f"class_names holds {shown}, expected 1 to {LONGEST_NAME} printable characters")
    if len(set(names)) < len(names):
        raise ValueError("class_names holds a name twice")
    largest = max(int(_classes(arrays, f"{half}_labels").max(initial=0)) for half in ("train", "test"))
    if len(names) <= largest:
        raise ValueError(f"class_names holds {len(names)} names, expected one for each label from 0 to {largest}")
    return tuple(names)


def _half(arrays: NpzArrays, half: str) -> LabeledImages:
    """Headers first, so that a wrong file is refused before it takes memory."""
    pixels, names = arrays.header(f"{half}_images"), arrays.header(f"{half}_labels")
    shape = pixels.shape
    if pixels.dtype != np.uint8 or len(shape) not in (3, 4) or shape[3:] not in ((), (3,)) or shape[0] != names.size:
        raise ValueError(
            f"{half}_images is {pixels.dtype} {shape} with {names.size} labels, "
            "expected uint8 (n, H, W, 3) or (n, H, W) with n labels"
        )
    if not shape[0]:
        raise ValueError(f"{half}_images is empty")
    if min(shape[1:3]) < SMALLEST:
        raise ValueError(f"{half}_images are {shape[1]} x {shape[2]} pixels, expected at least {SMALLEST} x {SMALLEST}")
    labels, groups = _classes(arrays, f"{half}_labels"), None
    if f"{half}_groups" in arrays:
        groups = _classes(arrays, f"{half}_groups")
        if len(groups) != len(labels):
            raise ValueError(f"{half}_groups holds {len(groups)} values for {len(labels)} images")
    return LabeledImages(_channels_first(arrays.read(f"{half}_images")), labels, groups)


def _channels_first(images: NDArray[np.uint8]) -> Pixels:
    if images.ndim == 3:
        images = np.repeat(images[..., None], 3, axis=-1)
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _classes(arrays: NpzArrays, name: str) -> Labels:
    """Numbers of classes, (n,); MedMNIST's are (n, 1)."""
    dtype = arrays.header(name).dtype
    if dtype.kind not in "biuf":
        raise ValueError(f"{name} is {dtype}, expected whole numbers")
    values = arrays.read(name).reshape(-1)
    wrong = ~((values >= 0) & (values < CLASSES) & (values == np.floor(values)))
    if wrong.any():
        first: Any = values[wrong][0]
        raise ValueError(f"{name} holds {first}, expected whole numbers from 0 to {CLASSES - 1}")
    return values.astype(np.int64)
