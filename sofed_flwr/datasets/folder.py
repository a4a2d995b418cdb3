"""The user's own image files, in class folders or without classes.

Without class folders nothing is known about an image: all are of one class, the stream is a shuffle, and the
evaluation leaves out what needs labels.
"""

import hashlib
import logging
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from sofed_flwr.core.records import LabeledImages, Split
from sofed_flwr.core.redaction import one_line
from sofed_flwr.core.rng import numpy_generator
from sofed_flwr.datasets.image_files import LAYOUTS, Entry, PassedOver, find_images
from sofed_flwr.images.decoding import decode

log = logging.getLogger(__name__)

SHOWN = 20
"""Classes that are counted by name."""


@dataclass(frozen=True)
class Folder:
    """`path`/{train,test}/CLASS/FILE, or `path`/CLASS/FILE, or `path`/FILE; the classes are the folders' names.

    A FILE may lie at any depth below its class (`image_files.py`).
    Without train and test, `test_fraction` of every class is held out, chosen by `seed`. Images become `size` x `size`.
    """

    path: str
    size: Annotated[int, Field(ge=8, le=1024)]
    test_fraction: Annotated[float, Field(gt=0, lt=1)]
    seed: Annotated[int, Field(ge=0)]

    def fingerprint(self) -> str:
        """The arguments, and name, size and time of last change of every file."""
        digest = hashlib.sha256()
        for file, _ in (entry for half in self._halves(PassedOver()) for entry in half):
            status = file.stat()
            digest.update(os.fsencode(f"{file.path}\0{status.st_size}\0{status.st_mtime_ns}\0"))
        return f"folder:{self._root()}:{self.size}:{self.test_fraction}:{self.seed}:{digest.hexdigest()}"

    @property
    def class_names(self) -> tuple[str, ...]:
        """In the order of their labels."""
        return _class_names(*self._halves(PassedOver()))

    def load(self) -> Split:
        """Decode every file; those that cannot be decoded are left out, and counted in a warning."""
        passed_over = PassedOver()
        train, test = self._halves(passed_over)
        log.info("%s: %s", self.path, one_line(_counted(train, test)))
        if folders := passed_over.folders:
            log.warning(
                "%s: %d folders are passed over, the first is %s", self.path, len(folders), one_line(folders[0])
            )
        numbers = {name: number for number, name in enumerate(_class_names(train, test))}
        failures = [f"{Path(photo).name}: {why}" for photo, why in passed_over.photos]
        split = Split(*(self._decoded(half, numbers, failures) for half in (train, test)))
        if failures:
            first = one_line(failures[0])
            log.warning("%s: %d unreadable images left out, the first is %s", self.path, len(failures), first)
        return split

    def _halves(self, passed_over: PassedOver) -> tuple[list[Entry], list[Entry]]:
        """Training and test files, neither empty; what is not looked into or not read is added to `passed_over`."""
        root = self._root()
        given = [root / half for half in ("train", "test")]
        try:
            if all(folder.is_dir() for folder in given):
                train, test = (find_images(folder, passed_over) for folder in given)
                others = (str(path) for path in root.iterdir() if path.is_dir() and path not in given)
                passed_over.folders.extend(sorted(others))
            else:
                train, test = self._held_out(find_images(root, passed_over))
        except ValueError as error:
            raise ValueError(f"path={self.path!r}: {error}") from error
        for half, entries in (("training", train), ("test", test)):
            if not entries:
                reason = ": ".join(passed_over.photos[0]) if passed_over.photos else LAYOUTS
                raise ValueError(f"path={self.path!r} has no {half} images; {reason}")
        return train, test

    def _root(self) -> Path:
        with suppress(RuntimeError):  # a link to itself, or an unknown user's home
            root = Path(self.path).expanduser().resolve()
            if root.is_dir():
                return root
        raise ValueError(f"path={self.path!r} is not a folder; dataset=folder needs dataset.path=FOLDER")

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
            except Exception as error:  # PIL's decoders may raise anything on a broken file
                failures.append(f"{file.name}: {error}")
            else:
                labels.append(numbers[name])
        if not labels:
            raise ValueError(f"path={self.path!r}: none of {len(entries)} images can be read; {failures[-1]}")
        return LabeledImages(images[: len(labels)], np.array(labels, np.int64))


def _class_names(train: list[Entry], test: list[Entry]) -> tuple[str, ...]:
    return tuple(sorted({name for _, name in train + test}))


def _counted(train: list[Entry], test: list[Entry]) -> str:
    """Counts by class, so that a folder wrongly taken for a class is noticed."""
    counts = [Counter(name for _, name in half) for half in (train, test)]
    names = _class_names(train, test)
    shown = [f"{name or 'without a class'} {counts[0][name]} + {counts[1][name]}" for name in names[:SHOWN]]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(train)} training and {len(test)} test images of {len(names)} classes: {', '.join(shown)}{more}"
