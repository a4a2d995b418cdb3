"""Strata that double in length with age: one buffer holds the last minutes and the far past, and never stops changing.

With strata of one length (`strata.py`) the length decides. Short ones forget early: a device that has made few steps
learns less from them than from a reservoir. Long ones change too slowly for a device that has made many. Here the
newest strata are short, and two neighbours become one when they reach an age, as in an exponential histogram (Datar et
al., 2002): new images enter as often as with short strata, half of them leave at each doubling, and a few stay for
thousands of iterations, whatever the device's horizon is.

Images that arrived at very different times then compete by the scores of their arrival. Scores fall as the model
learns and differ from class to class, so a score counts relative to those of its own segment.
"""

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from sofed_flwr.core.records import Pool, Selection
from sofed_flwr.policies.arrival import ARRIVAL, arrivals, equal_shares
from sofed_flwr.policies.base import ModelFree, Scorer, WeakView, standardised


@dataclass(frozen=True)
class FadingStrata(ModelFree):
    """A new stratum is `segments` long, of each length there are `doubling`, and `strata` of them share the buffer."""

    segments: Annotated[int, Field(ge=1)]
    doubling: Annotated[int, Field(ge=1)]
    strata: Annotated[int, Field(ge=1)]
    weak_view: WeakView

    def select(self, pool: Pool, capacity: int, scorer: Scorer, generator: torch.Generator) -> Selection:
        """Score what is new, then let the strata take turns."""
        arrived, scores = arrivals(pool), pool.scores.clone()
        unscored = scores.isnan()
        scores[unscored] = standardised(scorer.score(pool.images[unscored], self.weak_view))
        keep = equal_shares(beginnings(arrived, self.segments, self.doubling), scores, capacity, self.strata)
        return Selection(keep, scores, columns={ARRIVAL: arrived})


def beginnings(arrived: Tensor, segments: int, doubling: int) -> Tensor:
    """The iteration in which each entry's stratum begins (n,), with the newest entry's as the present one."""
    doublings = torch.frexp((arrived.max() - arrived) // float(segments * doubling) + 1).exponent - 1  # floor(log2)
    length = torch.ldexp(torch.full_like(arrived, segments), doublings)
    return arrived // length * length
