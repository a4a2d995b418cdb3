"""Image files of one's own, in class folders or without any classes.

Without class folders nothing is known about an image: all are of one class, the stream is a shuffle, and the
evaluation leaves out what needs labels.
"""

import hashlib
import logging
import os
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from sofed_flwr.contracts import LabeledImages, Split
from sofed_flwr.decoding import decode, has_image_name
from sofed_flwr.rng import numpy_generator

log = logging.getLogger(__name__)

LAYOUTS = "expected are train/CLASS/ and test/CLASS/, or CLASS/, or images without any folders"
UNLABELED = ""
"""Stands for the class of images that lie in no class folder."""

File = os.DirEntry[str]
Entry = tuple[File, str]
"""A file and its class."""


@dataclass(frozen=True)
class Folder:
    """`path`/{train,test}/CLASS/FILE, or `path`/CLASS/FILE, or `path`/FILE; the classes are the folders' names.

    Without train and test, `test_fraction` of every class is held out, chosen by `seed`. Images become `size` x `size`.
    """

    path: str
    size: Annotated[int, Field(ge=8)]
    test_fraction: Annotated[float, Field(gt=0, lt=1)]
    seed: Annotated[int, Field(ge=0)]

    def fingerprint(self) -> str:
        """The arguments, and name, size and time of last change of every file."""
        digest = hashlib.sha256()
        for file, _ in (entry for half in self._halves() for entry in half):
            status = file.stat()
            digest.update(os.fsencode(f"{file.path}\0{status.st_size}\0{status.st_mtime_ns}\0"))
        return f"folder:{self._root()}:{self.size}:{self.test_fraction}:{self.seed}:{digest.hexdigest()}"

    def load(self) -> Split:
        """Decode every file; those that cannot be decoded are left out, and counted in a warning."""
        train, test = self._halves()
        numbers = {name: number for number, name in enumerate(sorted({name for _, name in train + test}))}
        failures: list[str] = []
        split = Split(*(self._decoded(half, numbers, failures) for half in (train, test)))
        if failures:
            log.warning("%s: %d unreadable images left out, the first is %s", self.path, len(failures), failures[0])
        return split

    def _halves(self) -> tuple[list[Entry], list[Entry]]:
        """Training and test files, neither empty."""
        root = self._root()
        given = [root / half for half in ("train", "test")]
        if all(folder.is_dir() for folder in given):
            train, test = (self._entries(folder) for folder in given)
        else:
            train, test = self._held_out(self._entries(root))
        for half, entries in (("training", train), ("test", test)):
            if not entries:
                raise ValueError(f"path={self.path!r} has no {half} images; {LAYOUTS}")
        return train, test

    def _root(self) -> Path:
        root = Path(self.path).expanduser().resolve()
        if not root.is_dir():
            raise ValueError(f"path={self.path!r} is not a folder; dataset=folder needs dataset.path=FOLDER")
        return root

    def _entries(self, folder: Path) -> list[Entry]:
        """Image files in order of class and name: the order of a directory differs between machines."""
        children = _listing(folder)
        loose = [(child, UNLABELED) for child in children if _is_image(child)]
        sorted_in = [
            (file, child.name) for child in children if child.is_dir() for file in _listing(child) if _is_image(file)
        ]
        if loose and sorted_in:
            raise ValueError(
                f"path={self.path!r}: {folder} holds images ({loose[0][0].name}) beside folders of images "
                f"({sorted_in[0][1]}); {LAYOUTS}"
            )
        return loose or sorted_in

    def _held_out(self, entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
        """Stratified: `test_fraction` of every class, at least one image and never all of them."""
        classes = np.unique([name for _, name in entries], return_inverse=True)[1]
        order = numpy_generator(self.seed, "held-out images").permutation(len(entries))
        held_out = np.zeros(len(entries), bool)
        for number in range(max(classes, default=-1) + 1):
            members = order[classes[order] == number]
            held_out[members[: min(max(1, round(self.test_fraction * len(members))), len(members) - 1)]] = True
        train, test = ([entries[i] for i in np.flatnonzero(held_out == half)] for half in (False, True))
        return train, test

    def _decoded(self, entries: list[Entry], numbers: dict[str, int], failures: list[str]) -> LabeledImages:
        """Labels by class name; why a file cannot be decoded is added to `failures`."""
        images = np.empty((len(entries), 3, self.size, self.size), np.uint8)
        labels: list[int] = []
        for file, name in entries:
            try:
                images[len(labels)] = decode(Path(file), self.size)
            except Exception as error:  # PIL's decoders raise whatever a broken file makes them stumble over
                failures.append(f"{file.name}: {error}")
            else:
                labels.append(numbers[name])
        if not labels:
            raise ValueError(f"path={self.path!r}: none of {len(entries)} images can be read; {failures[-1]}")
        return LabeledImages(images[: len(labels)], np.array(labels, np.int64))


def _listing(folder: Path | File) -> list[File]:
    """What a folder holds, hidden things aside."""
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)


def _is_image(entry: File) -> bool:
    return has_image_name(entry.name) and entry.is_file()
