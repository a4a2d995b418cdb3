"""What a selection policy is: a choice among B ∪ X, made without labels.

A policy gets the pool, the capacity, a scorer and a generator, and returns indices; it never sees the model, the stream
or the configuration. Whatever it has to remember of an entry it hands back as a column (`Selection.columns`), which is
stored, damaged and dropped together with the entry, like its score.
"""

from typing import Literal, Protocol

import torch
from torch import Tensor

from sofed_flwr.core.records import Pool, Selection

WeakView = Literal["flip", "crop", "gray", "jitter"]
"""The view that an image is compared with (`views/weak.py`)."""


class Scorer(Protocol):
    """What a policy may use of a model; every SSL method is one."""

    def score(self, images: Tensor, weak_view: str) -> Tensor:
        """Importance scores (n,) by eq. (3)."""

    def features(self, images: Tensor) -> Tensor:
        """Backbone features (n, d)."""

    def score_with_features(self, images: Tensor, weak_view: str) -> tuple[Tensor, Tensor]:
        """Both, for the price of the scores."""


class Policy(Protocol):
    """Decides which entries of the pool stay."""

    def select(self, pool: Pool, capacity: int, scorer: Scorer, generator: torch.Generator) -> Selection:
        """Choose at most `capacity` entries; the pool is larger than that."""

    def carry_over(self, scores: Tensor, same_run: bool) -> Tensor:
        """What remains of the buffer's scores (NaN: nothing) now that a global model has replaced the local one.

        If not `same_run`, the new model is unrelated to the one that computed the scores.
        """


class ModelFree:
    """Base of the policies whose scores, if any, do not depend on the model."""

    def carry_over(self, scores: Tensor, same_run: bool) -> Tensor:
        """Nothing to forget."""
        return scores


def ranked_lowest_if_not_finite(scores: Tensor) -> Tensor:
    """`topk` ranks NaN above every number: one broken image would never leave the buffer."""
    return scores.nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)


def standardised(scores: Tensor) -> Tensor:
    """How many standard deviations above the mean, for scores of one segment: their scale falls as the model learns."""
    finite = scores[scores.isfinite()]
    spread = finite.std(correction=0) if len(finite) else scores.new_zeros(())
    mean = finite.mean() if len(finite) else scores.new_zeros(())
    return ranked_lowest_if_not_finite((scores - mean) / spread.clamp(min=1e-9))
