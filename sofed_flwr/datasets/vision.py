"""CIFAR-10, CIFAR-100 and SVHN: torchvision downloads, verifies and parses; `datasets/cache.py` keeps the pixels.

Checksums decide what an archive holds, so they are the fingerprint: once decoded, neither archive nor network is asked
for again. What cannot be had ends in one sentence that says which file belongs where.
"""

import pickle
import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic.dataclasses import dataclass
from torchvision import datasets
from torchvision.datasets.utils import check_integrity, download_url, extract_archive

from sofed_flwr.contracts import LabeledImages, Labels, Split
from sofed_flwr.datasets.cache import cache_root

PATIENCE = 10.0
"""Seconds without an answer after which a server is given up."""


class Archive(NamedTuple):
    """A file as published."""

    url: str
    name: str
    md5: str


@dataclass(frozen=True)
class Published(ABC):
    """A dataset others publish; its archives are looked for in `root`, None being a folder beside the decoded ones."""

    root: str | None
    download: bool
    title: ClassVar[str]

    @abstractmethod
    def archives(self) -> list[Archive]:
        """The files to download."""

    @abstractmethod
    def read(self, train: bool) -> LabeledImages:
        """One half; torchvision's RuntimeError if a file is missing or its checksum is wrong."""

    def fingerprint(self) -> str:
        """The archives' checksums."""
        return ":".join([self.title, *(archive.md5 for archive in self.archives())])

    def load(self) -> Split:
        """Read what is there; only if that is not everything, get the archives."""
        try:
            return Split(self.read(train=True), self.read(train=False))
        except RuntimeError:
            for archive in self.archives():
                self._obtain(archive)
            return Split(self.read(train=True), self.read(train=False))

    @property
    def folder(self) -> Path:
        """`root`, resolved."""
        return Path(self.root).expanduser() if self.root else cache_root() / "downloads"

    def _obtain(self, archive: Archive) -> None:
        file = self.folder / archive.name
        if not check_integrity(file, archive.md5):
            self._fetch(archive, file)
        if ".tar" in file.suffixes:
            extract_archive(file, self.folder)

    def _fetch(self, archive: Archive, file: Path) -> None:
        trouble = "is damaged (its checksum is wrong)" if file.exists() else "is not there"
        if not self.download:
            raise self._refusal(archive, f"{trouble} and dataset.download is false")
        try:
            _download(archive, self.folder)
        except (OSError, HTTPException, RuntimeError) as error:
            raise self._refusal(archive, f"{trouble} and cannot be downloaded ({error})") from error

    def _refusal(self, archive: Archive, trouble: str) -> ValueError:
        return ValueError(
            f"root={self.folder}: {self.title} needs {archive.name} in this folder, which {trouble}; "
            f"put the file from {archive.url} there, or use dataset=npz"
        )


@dataclass(frozen=True)
class Cifar10(Published):
    """60,000 images of ten classes."""

    title: ClassVar[str] = "CIFAR-10"
    source: ClassVar[Any] = datasets.CIFAR10

    def archives(self) -> list[Archive]:
        """One archive of pickles."""
        return [Archive(self.source.url, self.source.filename, self.source.tgz_md5)]

    def read(self, train: bool) -> LabeledImages:
        """torchvision gives channels last."""
        half = self.source(self.folder, train=train)
        return LabeledImages(half.data.transpose(0, 3, 1, 2), np.asarray(half.targets, np.int64))


@dataclass(frozen=True)
class Cifar100(Cifar10):
    """60,000 images of 100 classes, which make up 20 superclasses.

    The paper's STC of 2500 needs classes of as many images: CIFAR-100 has 500 in a class, 2500 in a superclass.
    """

    stream_classes: Literal["fine", "superclass"]
    title: ClassVar[str] = "CIFAR-100"
    source: ClassVar[Any] = datasets.CIFAR100

    def fingerprint(self) -> str:
        """The archive's checksum and what the stream goes by."""
        return f"{super().fingerprint()}:{self.stream_classes}"

    def read(self, train: bool) -> LabeledImages:
        """Labels are fine ones in either case."""
        half = super().read(train)
        return half if self.stream_classes == "fine" else replace(half, coarse=self._superclasses(train))

    def _superclasses(self, train: bool) -> Labels:
        """torchvision leaves them in the file, whose checksum it has just verified."""
        name = (self.source.train_list if train else self.source.test_list)[0][0]
        content = pickle.loads((self.folder / self.source.base_folder / name).read_bytes(), encoding="latin1")
        return np.asarray(content["coarse_labels"], np.int64)


@dataclass(frozen=True)
class Svhn(Published):
    """99,289 house number digits (the extra images are left out, as usual)."""

    title: ClassVar[str] = "SVHN"

    def archives(self) -> list[Archive]:
        """One file per half."""
        return [Archive(*datasets.SVHN.split_list[half]) for half in ("train", "test")]

    def load(self) -> Split:
        """Say what is missing before anything is downloaded."""
        if find_spec("scipy") is None:
            raise ValueError(f"root={self.folder}: SVHN's files need scipy; pip install 'sofed-flwr[svhn]'")
        return super().load()

    def read(self, train: bool) -> LabeledImages:
        """torchvision turns the label 10 of the digit 0 into 0."""
        half = datasets.SVHN(self.folder, "train" if train else "test")
        return LabeledImages(np.ascontiguousarray(half.data), half.labels)


def _download(archive: Archive, folder: Path) -> None:
    """Into a folder beside, then renamed: however it ends, no part of a file gets the archive's name."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".downloading-") as beside, _limited_patience():
        download_url(archive.url, beside, archive.name, archive.md5)
        (Path(beside) / archive.name).replace(folder / archive.name)


@contextmanager
def _limited_patience() -> Iterator[None]:
    """torchvision sets no time limit: a network that swallows packets would hold it for minutes."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
