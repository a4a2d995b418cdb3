"""What labels say of a classifier that was fitted on the others: stratified cross-validation, and the choice of l2.

Every image is evaluated once, by a head that was fitted without it, so that few labels are used for both. An image
that is the only one of its class is never held out: without it, the class could not be learned, and it would only be
counted as wrong. With five folds, 80 % of the labels are fitted at a time, so the estimate is rather too low than too
high.

l2 is chosen where every class has at least five labels, so that every fold holds all classes; with fewer, the probe's
1e-3 stays. The choice goes by the likelihood of the held-out labels: of a hundred images the accuracy has steps of one
point, and its best value is mostly luck.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sofed_flwr.classifier.head import DEFAULT_L2, solve
from sofed_flwr.classifier.labels import Watch
from sofed_flwr.core.records import Features, Indices, Labels
from sofed_flwr.core.rng import numpy_generator

FOLDS = 5
GRID = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


class Validation(NamedTuple):
    """Logits (n, classes) of the held-out images, by folds of indices; rows of images never held out are NaN."""

    logits: Tensor
    folds: list[Indices]

    @property
    def evaluated(self) -> Indices:
        """The images that were held out, sorted."""
        return np.sort(np.concatenate(self.folds))

    def correct(self, labels: Tensor) -> int:
        """How many of the images that were evaluated."""
        evaluated = torch.from_numpy(self.evaluated)
        return int((self.logits[evaluated].argmax(dim=1) == labels[evaluated]).sum())

    def loss(self, labels: Tensor) -> float:
        """Mean cross-entropy of the images that were evaluated."""
        evaluated = torch.from_numpy(self.evaluated)
        return functional.cross_entropy(self.logits[evaluated], labels[evaluated]).item()


def deal_folds(labels: Labels, seed: int) -> list[Indices]:
    """Each class is shuffled and dealt in turn, one class going on where the last one stopped; no fold is empty.

    So folds differ by at most one image in size, and by at most one in each class.
    """
    order = numpy_generator(seed, "validation folds").permutation(len(labels))
    members = [order[labels[order] == label] for label in np.unique(labels)]
    dealt = np.concatenate([images for images in members if len(images) > 1] or [np.empty(0, np.int64)])
    return [np.sort(dealt[start::FOLDS]) for start in range(min(FOLDS, len(dealt)))]


def cross_validate(
    features: Features, classes: int, folds: list[Indices], grid: Sequence[float], watch: Watch
) -> dict[float, Validation]:
    """Evaluate heads of every l2 of the grid."""
    shape = len(features.labels), classes
    found = {l2: Validation(torch.full(shape, torch.nan, dtype=torch.float64), folds) for l2 in grid}
    for l2, held_out in watch([(l2, fold) for l2 in grid for fold in folds], "cross-validation"):
        rest = np.setdiff1d(np.arange(len(features.labels)), held_out)
        head = solve(Features(features.values[rest], features.labels[rest]), classes, l2)
        found[l2].logits[held_out] = head.logits(features.values[held_out])
    return found


def choose_l2(features: Features, classes: int, folds: list[Indices], watch: Watch) -> tuple[float, Validation | None]:
    """The l2 of the grid with the smallest loss, and its validation; None where no image can be held out."""
    if not folds:
        return DEFAULT_L2, None
    enough = int(torch.bincount(features.labels).min()) >= FOLDS
    grid = GRID if enough else (DEFAULT_L2,)
    tried = cross_validate(features, classes, folds, grid, watch)
    best = min(tried, key=lambda l2: tried[l2].loss(features.labels))
    return best, tried[best]
