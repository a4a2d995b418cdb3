"""Importance scoring (the paper's policy): keep the images the model understands least.

Eq. (3) scores an image, eq. (4) keeps the N highest, eq. (5) reuses a score until its entry's age is a multiple of the
lazy interval T. The paper does not say what a new global model does to scores of the old one: `on_global` does.

What no model will ever understand, noise of a failing camera for example, would stay for ever: `max_age` limits that.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from sofed_flwr.contracts import Pool, Selection
from sofed_flwr.policies.base import Scorer


@dataclass(frozen=True)
class Importance:
    """Keep the highest scores; `lazy_interval` is T, None rescores the whole buffer at every iteration.

    An entry that has stayed for more than `max_age` iterations ranks lowest; None lets it stay as long as it may.
    """

    lazy_interval: Annotated[int, Field(ge=1)] | None
    weak_view: Literal["flip", "crop", "gray", "jitter"]
    on_global: Literal["keep", "rescore"]
    max_age: Annotated[int, Field(ge=1)] | None = None

    def select(self, pool: Pool, capacity: int, scorer: Scorer, generator: torch.Generator) -> Selection:
        """Score what is due, then take the top N (eq. 4)."""
        due = self._due(pool)
        scores = pool.scores.clone()
        if due.any():
            scores[due] = _ranked_lowest_if_not_finite(scorer.score(pool.images[due], self.weak_view))
        keep = torch.topk(self._ranked(scores, pool.ages), capacity, sorted=False).indices.sort().values
        return Selection(keep, scores, rescored=int((due & ~pool.is_new).sum()))

    def carry_over(self, scores: Tensor, same_run: bool) -> Tensor:
        """Keep the scores, or forget them so that the first iteration of the round computes all anew."""
        return scores if self.on_global == "keep" and same_run else torch.full_like(scores, torch.nan)

    def _ranked(self, scores: Tensor, ages: Tensor) -> Tensor:
        return scores if self.max_age is None else scores.masked_fill(ages > self.max_age, -torch.inf)

    def _due(self, pool: Pool) -> Tensor:
        interval = self.lazy_interval or 1
        return (pool.ages % interval == 0) | pool.scores.isnan()


def _ranked_lowest_if_not_finite(scores: Tensor) -> Tensor:
    # topk ranks NaN above every number: one broken image would never leave the buffer.
    return scores.nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
