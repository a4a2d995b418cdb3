"""Importance within arrival strata: images compete only with images that arrived at about the same time.

On a correlated stream the highest scores of a whole buffer are often those of one class: with N = 32, importance
scoring held 2 to 7 of ten classes at a round's end. A reservoir holds all classes, but stops changing. Here time is cut
into strata, the newest strata share the buffer equally, and inside each the images stay that the model understood least
when they came (eq. 3). The buffer spans many class runs, and it never stops changing.

Entries compete only with their contemporaries, so the score of their arrival suffices: nothing is rescored, and a
new global model changes no decision.
"""

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from sofed_flwr.core.records import Pool, Selection
from sofed_flwr.policies.arrival import ARRIVAL, arrivals, equal_shares
from sofed_flwr.policies.base import ModelFree, Scorer, WeakView, ranked_lowest_if_not_finite


@dataclass(frozen=True)
class Strata(ModelFree):
    """`segments` make a stratum, and the `strata` newest ones share the buffer."""

    segments: Annotated[int, Field(ge=1)]
    strata: Annotated[int, Field(ge=1)]
    weak_view: WeakView

    def select(self, pool: Pool, capacity: int, scorer: Scorer, generator: torch.Generator) -> Selection:
        """Score what is new, then let the strata take turns."""
        arrived = arrivals(pool)
        scores = pool.scores.clone()
        unscored = scores.isnan()
        scores[unscored] = ranked_lowest_if_not_finite(scorer.score(pool.images[unscored], self.weak_view))
        keep = equal_shares(arrived // self.segments, scores, capacity, self.strata)
        return Selection(keep, scores, columns={ARRIVAL: arrived})
