"""The arrays of an .npz file: headers are compared with the file before memory is allocated.

A zip archive of a few kilobytes can claim a terabyte in two places: as the unpacked size of a member, and in the header
of the array inside. NumPy checks neither.
"""

import io
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

LONGEST_HEADER = 2**12
"""Bytes up to the array's data; four dimensions and a type take 128."""
SHOWN = 10
COPIES = 5
"""How often an array is in memory at most: as read, and gray images as three channels, once more channels first."""


class Header(NamedTuple):
    """What a .npy header claims, and how many bytes it is long."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    length: int

    @property
    def size(self) -> int:
        """Elements, as a number that cannot overflow."""
        return prod(self.shape)


class NpzArrays:
    """Arrays by name; every fault of the file is a `ValueError` of one sentence."""

    def __init__(self, file: Path) -> None:
        with file.open("rb") as start:
            if start.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
                raise ValueError("this is one .npy array, not an .npz file; np.savez writes one")
        with _sentence("this is not a readable .npz file"):
            self._archive = zipfile.ZipFile(file)
        self.names = [info.filename.removesuffix(".npy") for info in self._archive.infolist()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def __str__(self) -> str:
        more = f" and {len(self.names) - SHOWN} more" if len(self.names) > SHOWN else ""
        return ", ".join(sorted(self.names)[:SHOWN]) + more

    def header(self, name: str) -> Header:
        """What the array claims to be, if the archive agrees and this machine could hold it."""
        if name not in self:
            raise ValueError(f"no {name!r}; it holds {self}")
        with _sentence(f"{name} cannot be read"):
            info = self._archive.getinfo(f"{name}.npy")
            with self._archive.open(info) as member:
                header = _read_header(member)
        claimed = header.size * header.dtype.itemsize
        if COPIES * claimed > _memory():
            raise ValueError(f"{name} claims {_gigabytes(claimed)}, too much for {_gigabytes(_memory())} of memory")
        if not header.dtype.hasobject and info.file_size != header.length + claimed:
            raise ValueError(f"{name} claims {header.shape} of {header.dtype}, which is not what the file holds")
        return header

    def read(self, name: str) -> NDArray[Any]:
        """The array itself, after `header` was checked."""
        with _sentence(f"{name} cannot be read"), self._archive.open(f"{name}.npy") as member:
            array: NDArray[Any] = npy.read_array(member, allow_pickle=False)
            member.read(1)  # at its end zipfile compares the checksum
        return array

    def texts(self, name: str) -> list[str]:
        """An array of texts, after `header` was checked; NumPy keeps numbers that are no characters."""
        values = self.read(name)
        with _sentence(f"{name} cannot be read"):
            return [str(text) for text in values.tolist()]


def _read_header(member: Any) -> Header:
    """NumPy's own parser on a limited number of bytes: a header can claim to be four gigabytes long."""
    start = io.BytesIO(member.read(LONGEST_HEADER))
    parse = npy.read_array_header_1_0 if npy.read_magic(start) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = parse(start)
    if min(shape, default=0) < 0:
        raise ValueError(f"its shape is {shape}")
    return Header(shape, dtype, start.tell())


@contextmanager
def _sentence(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # zipfile, its decompressors and NumPy's parser may raise anything on broken bytes
        raise ValueError(f"{what} ({error or type(error).__name__})") from error


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size < 10**15 else "more than a million GB"
