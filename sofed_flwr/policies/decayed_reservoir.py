"""Time-decayed weighted reservoir: a random draw from the past that prefers the recent and the important.

Every image draws one key when it arrives, and the N largest keys stay (`random_keys.py`). An image's weight falls by a
factor of e every `horizon` iterations. All keys fall alike, so none has to change: a key counts from the arrival.
"""

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from sofed_flwr.core.records import Pool, Selection
from sofed_flwr.policies.arrival import ARRIVAL, arrivals
from sofed_flwr.policies.base import ModelFree, Scorer, WeakView, ranked_lowest_if_not_finite
from sofed_flwr.policies.random_keys import gumbel_noise, largest, log_weights

KEY = "key"


@dataclass(frozen=True)
class DecayedReservoir(ModelFree):
    """`beta` says how much importance counts (0: not at all, and nothing is scored), `horizon` how long images stay."""

    beta: Annotated[float, Field(ge=0, le=100)]
    horizon: Annotated[float, Field(gt=0)]
    weak_view: WeakView

    def select(self, pool: Pool, capacity: int, scorer: Scorer, generator: torch.Generator) -> Selection:
        """Draw keys for what has none, keep the largest."""
        arrived, keys, scores = arrivals(pool), pool.column(KEY), pool.scores.clone()
        without = ~keys.isfinite()
        keys[without] = arrived[without] / self.horizon + gumbel_noise(int(without.sum()), generator)
        if self.beta:
            scores[without] = ranked_lowest_if_not_finite(scorer.score(pool.images[without], self.weak_view))
            keys[without] += log_weights(scores[without], self.beta)
        return Selection(largest(keys, capacity), scores, columns={ARRIVAL: arrived, KEY: keys})
