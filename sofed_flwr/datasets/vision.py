"""CIFAR-10, CIFAR-100 and SVHN: torchvision downloads, verifies and parses; `datasets/cache.py` keeps the pixels.

Checksums decide what an archive holds, so they are the fingerprint: once decoded, neither archive nor network is needed
again. A missing file is one sentence that says which file belongs where.
"""

import pickle
from abc import ABC, abstractmethod
from dataclasses import replace
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass
from torchvision import datasets
from torchvision.datasets.utils import check_integrity, extract_archive

from sofed_flwr.core.records import LabeledImages, Labels, Split
from sofed_flwr.datasets.cache_folder import cache_root, locked
from sofed_flwr.datasets.download import Archive, download

CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
"""In the order of its labels; torchvision reads them from the archive, which a cached dataset does without."""


@dataclass(frozen=True)
class Published(ABC):
    """A public dataset; its archives are expected in `root`, by default a folder beside the decoded ones."""

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
            with locked(cache_root() / "downloads.lock"):
                for archive in self.archives():
                    self._obtain(archive)
                return Split(self.read(train=True), self.read(train=False))

    @property
    def folder(self) -> Path:
        """`root`, resolved."""
        if not self.root:
            return cache_root() / "downloads"
        try:
            return Path(self.root).expanduser()
        except RuntimeError as error:
            raise ValueError(f"root={self.root}: {error}") from error

    def _obtain(self, archive: Archive) -> None:
        file = self.folder / archive.name
        if not check_integrity(file, archive.md5):
            self._fetch(archive, file)
        if ".tar" in file.suffixes:
            try:
                extract_archive(file, self.folder)
            except OSError as error:
                raise self._refusal(archive, f"cannot be unpacked ({error})") from error

    def _fetch(self, archive: Archive, file: Path) -> None:
        trouble = "is damaged (its checksum is wrong)" if file.exists() else "is not there"
        if not self.download:
            raise self._refusal(archive, f"{trouble} and dataset.download is false")
        try:
            download(archive, self.folder)
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
    class_names: ClassVar[tuple[str, ...] | None] = CIFAR10_CLASSES

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
    class_names: ClassVar[tuple[str, ...] | None] = None

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
