"""How good a classifier is, and how sure that is: accuracy with its interval, confusion matrix, a line per class.

With ten images per class the interval is ten points wide to either side; an accuracy without it would be read as if it
were exact. Wilson's interval is used since the usual one (plus and minus two standard errors) has no width at 0 and at
100 %, which few images reach easily (Wilson 1927; Brown, Cai and DasGupta 2001). It takes predictions as independent:
those of cross-validation share training images, so there the spread over the folds is told as well.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sofed_flwr.core.records import Indices

Z = 1.959964
"""The 97.5 % point of the normal distribution: intervals are of 95 %."""


@dataclass(frozen=True)
class Assessment:
    """`confusion[true, predicted]` counts images; `folds` are the accuracies of cross-validation, if it was that."""

    classes: tuple[str, ...]
    confusion: Indices
    folds: tuple[float, ...] = ()

    @property
    def images(self) -> int:
        """How many were evaluated."""
        return int(self.confusion.sum())

    @property
    def correct(self) -> int:
        """How many of them are correct."""
        return int(np.trace(self.confusion))

    @property
    def accuracy(self) -> float:
        """In percent."""
        return 100 * self.correct / self.images

    @property
    def interval(self) -> tuple[float, float]:
        """Of 95 %, in percent."""
        return wilson(self.correct, self.images)

    @property
    def evaluated_by(self) -> str:
        """In words."""
        return "cross-validation" if self.folds else "test images"

    @property
    def majority(self) -> tuple[str, float]:
        """The most frequent class, and its percentage: the accuracy of always answering it."""
        counts = self.confusion.sum(axis=1)
        return self.classes[int(counts.argmax())], 100 * int(counts.max()) / self.images

    @property
    def better_than_chance(self) -> bool:
        """Whether the whole interval lies above what always answering the most frequent class gets."""
        return self.interval[0] > self.majority[1]


def assess(classes: Sequence[str], labels: Indices, predicted: Indices, folds: Sequence[Indices] = ()) -> Assessment:
    """`labels` and `predicted` (n,) are numbers of classes; with `folds` only the images in those count."""
    evaluated = np.concatenate(folds) if folds else np.arange(len(labels))
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(confusion, (labels[evaluated], predicted[evaluated]), 1)
    spread = (100 * float(np.mean(labels[fold] == predicted[fold])) for fold in folds)
    return Assessment(tuple(classes), confusion, tuple(spread))


def wilson(correct: int, images: int) -> tuple[float, float]:
    """Bounds in percent: the shares p for which the observed one is within Z standard errors of p."""
    share, spread = correct / images, Z * Z / images
    middle = share + spread / 2
    half = Z * math.sqrt(share * (1 - share) / images + spread / (4 * images))
    low, high = ((middle + sign * half) / (1 + spread) for sign in (-1, 1))
    return 100 * max(0.0, low), 100 * min(1.0, high)


def precision_and_recall(confusion: Indices) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Per class in percent; NaN where no image was predicted to be of it, or none was."""
    right = np.diag(confusion).astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        return 100 * right / confusion.sum(axis=0), 100 * right / confusion.sum(axis=1)


def most_confused(confusion: Indices, most: int) -> list[tuple[int, int, int]]:
    """(true, predicted, images) of the pairs with the most wrong answers, in a fixed order."""
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    pairs = [(int(i), int(j), int(wrong[i, j])) for i, j in np.argwhere(wrong)]
    return sorted(pairs, key=lambda pair: (-pair[2], *pair[:2]))[:most]
