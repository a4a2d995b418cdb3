"""What a selection policy is: a choice among B ∪ X, made without labels.

A policy gets the pool, the capacity, a scorer and a generator, and returns indices; it never sees the model, the stream
or the configuration. Whatever it has to remember it keeps as the entries' scores, which live and die with the buffer.
"""

from typing import Protocol

import torch
from torch import Tensor

from sofed_flwr.contracts import Pool, Selection


class Scorer(Protocol):
    """The little a policy may ask of a model; every SSL method is one."""

    def score(self, images: Tensor, weak_view: str) -> Tensor:
        """Importance scores (n,) by eq. (3)."""

    def features(self, images: Tensor) -> Tensor:
        """Backbone features (n, d)."""


class Policy(Protocol):
    """Decides which entries of the pool stay."""

    def select(self, pool: Pool, capacity: int, scorer: Scorer, generator: torch.Generator) -> Selection:
        """Choose at most `capacity` entries; the pool is larger than that."""

    def carry_over(self, scores: Tensor, same_run: bool) -> Tensor:
        """What remains of the buffer's scores (NaN: nothing) now that a global model has replaced the local one.

        Not `same_run` means that the new model has nothing to do with the one the scores came from.
        """


class ModelFree:
    """Base of the policies whose scores, if any, do not depend on the model."""

    def carry_over(self, scores: Tensor, same_run: bool) -> Tensor:
        """Nothing to forget."""
        return scores
