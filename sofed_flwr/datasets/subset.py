"""A part of any dataset, with every class in its proportion: small-scale experiments on the paper's datasets."""

from dataclasses import dataclass

import numpy as np

from sofed_flwr.core.records import Indices, LabeledImages, Labels, Split
from sofed_flwr.datasets.base import Dataset
from sofed_flwr.datasets.cache import open_split


@dataclass(frozen=True)
class Subset:
    """At most about `train` and `test` images (None: all), the same ones on every machine."""

    whole: Dataset
    train: int | None
    test: int | None

    def fingerprint(self) -> str:
        """That of the whole, and how much of it."""
        return f"subset:{self.train}:{self.test}:{self.whole.fingerprint()}"

    def load(self) -> Split:
        """Pick from the whole, which is decoded and cached first."""
        split = open_split(self.whole)
        return Split(_part(split.train, self.train), _part(split.test, self.test))


def _part(data: LabeledImages, size: int | None) -> LabeledImages:
    if size is None or size >= len(data):
        return data
    chosen = proportional(data.labels, size)
    return LabeledImages(data.images[chosen], data.labels[chosen], data.groups[chosen])


def proportional(labels: Labels, size: int) -> Indices:
    """Sorted indices of `size` images up to rounding, each class by its share, at least one of each."""
    order = np.random.RandomState(0).permutation(len(labels))
    classes, counts = np.unique(labels, return_counts=True)
    shares = np.maximum(1, np.round(counts * size / len(labels)).astype(int))
    chosen = [order[labels[order] == name][:share] for name, share in zip(classes, shares, strict=True)]
    return np.sort(np.concatenate(chosen))
