"""The labels a classifier is fitted on: images, their classes, and which of them are chosen."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from sofed_flwr.classifier.label_files import Entry, LabelFiles, find_labels, refuse_what_are_no_classes
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import Indices, LabeledImages, Labels, Split
from sofed_flwr.core.redaction import one_line
from sofed_flwr.evaluation.linear import per_class, stratified
from sofed_flwr.images.decoding import decode

Watch = Callable[[Sequence[Any], str], Iterable[Any]]
"""Gives the same things one by one, and shows how far that is; the text says what is being done with them."""


class Choice(NamedTuple):
    """How many of the labels: a fraction of every class, or a number; neither is all. The seed says which ones."""

    fraction: float | None = None
    per_class: int | None = None
    seed: int = 0

    def of(self, labels: Labels) -> Indices:
        """Sorted indices."""
        if self.fraction is not None:
            return stratified(torch.from_numpy(labels), self.fraction, self.seed).numpy()
        if self.per_class is not None:
            return per_class(torch.from_numpy(labels), self.per_class, self.seed).numpy()
        return np.arange(len(labels))

    def used(self, most: int) -> "Choice":
        """What became of it, where no class has more than `most` labels."""
        return self._replace(per_class=None if self.per_class is None else min(self.per_class, most))


@dataclass(frozen=True)
class NamedImages:
    """Labelled images, and what each is called in a message."""

    data: LabeledImages
    names: Sequence[str]


@dataclass(frozen=True)
class LabelSet:
    """`source` says in a word where the labels are from; `remarks` what was left out."""

    classes: tuple[str, ...]
    train: NamedImages
    test: NamedImages | None
    source: str
    remarks: tuple[str, ...] = ()


def read_labels(place: Path, size: tuple[int, int], choice: Choice, watch: Watch) -> LabelSet:
    """Class folders or a CSV; images become `size`, and those that cannot be read are left out and told."""
    found = find_labels(place)
    numbers = {label: number for number, label in enumerate(found.classes)}
    chosen = choice.of(np.array([numbers[label] for _, label in found.train]))
    failures: list[str] = []

    def read(entries: list[Entry], half: str) -> NamedImages:
        images, labels, names = [], [], []
        for file, label in watch(entries, f"reading {half} images"):
            name = one_line(_name(file, found))
            try:
                images.append(decode(file, size))
            except Exception as error:  # PIL's decoders raise whatever a broken file makes them stumble over
                failures.append(f"{name}: {error}")
            else:
                labels.append(numbers[label])
                names.append(name)
        pixels = np.stack(images) if images else np.empty((0, 3, *size), np.uint8)
        return NamedImages(LabeledImages(pixels, np.array(labels, np.int64)), names)

    train = read([found.train[place] for place in chosen], "labelled")
    test = None if found.test is None else read(found.test, "test")
    _refuse_lost(place, found.classes, train, test, failures)
    failures += [f"{_name(Path(photo), found)}: {why}" for photo, why in found.passed_over.photos]
    remarks = [f"{len(failures)} unreadable images left out, the first is {failures[0]}"] if failures else []
    if links := found.passed_over.folders:
        remarks.append(f"{len(links)} links to folders are not followed, the first is {_name(Path(links[0]), found)}")
    return LabelSet(found.classes, train, test, "folder" if place.is_dir() else "CSV", tuple(map(one_line, remarks)))


def _name(file: Path, found: LabelFiles) -> str:
    return str(file.relative_to(found.root) if file.is_relative_to(found.root) else file)


def names_of(dataset: object) -> Sequence[str] | None:
    """What a dataset calls its classes, which may be in a file of somebody else; None if it does not."""
    try:
        names: Sequence[str] | None = getattr(dataset, "class_names", None)
    except ValueError as error:
        raise ConfigError(f"dataset.{error}") from error
    return names


def of_dataset(split: Split, names: Sequence[str] | None, source: str, choice: Choice, remarks: list[str]) -> LabelSet:
    """A dataset's own halves; classes that have no names are called by their numbers."""
    numbers = np.unique(split.train.labels)
    if names is not None and len(names) <= numbers.max():
        names = None
    classes = tuple(str(number) if names is None else names[number] for number in numbers)
    refuse_what_are_no_classes(source, classes, len(split.train))
    test = np.flatnonzero(np.isin(split.test.labels, numbers))
    left_out = len(split.test) - len(test)
    lost = [f"{left_out} test images of classes without training images left out"] if left_out else []
    halves = [(split.train, choice.of(np.array(split.train.labels)), "training"), (split.test, test, "test")]
    train, evaluated = (
        NamedImages(
            LabeledImages(half.images[chosen], np.searchsorted(numbers, half.labels[chosen])),
            [f"{name} image {place}" for place in chosen],
        )
        for half, chosen, name in halves
    )
    return LabelSet(classes, train, evaluated, source, (*remarks, *lost))


def _refuse_lost(
    place: Path, classes: Sequence[str], train: NamedImages, test: NamedImages | None, failures: list[str]
) -> None:
    counts = np.bincount(train.data.labels, minlength=len(classes))
    if 0 in counts:
        lost = classes[int(counts.argmin())]
        raise ConfigError(f"{place}: no image of the class {lost!r} can be read; {failures[0]}")
    if test is not None and not len(test.data):
        raise ConfigError(f"{place / 'test'}: no image can be read; {failures[0]}")
