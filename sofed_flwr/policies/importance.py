"""Importance scoring (the paper's policy): keep the images whose two views the model finds least similar.

Eq. (3) scores an image, eq. (4) keeps the N highest, eq. (5) reuses a score until its entry's age is a multiple of the
lazy interval T. The paper does not say whether scores of the old model stay valid for a new global one: `on_global`
decides.

An image that stays dissimilar for any model, such as the noise of a failing camera, would never leave: `max_age`
limits its stay.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from sofed_flwr.core.records import Pool, Selection
from sofed_flwr.policies.base import Scorer, WeakView, ranked_lowest_if_not_finite


@dataclass(frozen=True)
class Importance:
    """Keep the highest scores; `lazy_interval` is T, None rescores the whole buffer at every iteration.

    An entry that has stayed for more than `max_age` iterations ranks lowest; None lets it stay as long as it may.
    """

    lazy_interval: Annotated[int, Field(ge=1)] | None
    weak_view: WeakView
    on_global: Literal["keep", "rescore"]
    max_age: Annotated[int, Field(ge=1)] | None = None

    def select(self, pool: Pool, capacity: int, scorer: Scorer, generator: torch.Generator) -> Selection:
        """Score what is due (eq. 5), then take the top N (eq. 4)."""
        due = (pool.ages % (self.lazy_interval or 1) == 0) | pool.scores.isnan()
        scores = pool.scores.clone()
        if due.any():
            scores[due] = ranked_lowest_if_not_finite(scorer.score(pool.images[due], self.weak_view))
        ranked = scores if self.max_age is None else scores.masked_fill(pool.ages > self.max_age, -torch.inf)
        keep = torch.topk(ranked, capacity, sorted=False).indices.sort().values
        return Selection(keep, scores, rescored=int((due & ~pool.is_new).sum()))

    def carry_over(self, scores: Tensor, same_run: bool) -> Tensor:
        """Keep the scores, or forget them so that the first iteration of the round recomputes all."""
        return scores if self.on_global == "keep" and same_run else torch.full_like(scores, torch.nan)
