"""Time-decayed weighted reservoir: a random draw from the past that prefers the recent and the important.

Every image draws one key when it arrives, and the N largest keys stay. With Gumbel noise as the key this is a plain
reservoir; a constant added to it multiplies the image's weight (Efraimidis and Spirakis, 2006, in logarithms). The
weight is exp(β z) for an image whose score (eq. 3) is z standard deviations above its segment's mean, and it falls by a
factor of e every `horizon` iterations. All keys fall alike, so none has to change: a key counts from the arrival.
"""

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass

from sofed_flwr.core.records import Pool, Selection
from sofed_flwr.policies.arrival import ARRIVAL, arrivals
from sofed_flwr.policies.base import ModelFree, Scorer, WeakView, ranked_lowest_if_not_finite, standardised

KEY = "key"
LARGEST_Z = 2.0
"""Standard deviations: one outlier, such as the noise of a failing camera, must not stay for e^9 iterations."""


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
        noise = torch.rand(int(without.sum()), generator=generator, dtype=torch.float64)
        keys[without] = arrived[without] / self.horizon - torch.log(-torch.log(noise.clamp(1e-12, 1 - 1e-12)))
        if self.beta:
            scores[without] = ranked_lowest_if_not_finite(scorer.score(pool.images[without], self.weak_view))
            above = standardised(scores[without].double()).clamp(-LARGEST_Z, LARGEST_Z)
            keys[without] += self.beta * above
        keep = torch.topk(keys, capacity, sorted=False).indices.sort().values
        return Selection(keep, scores, columns={ARRIVAL: arrived, KEY: keys})
