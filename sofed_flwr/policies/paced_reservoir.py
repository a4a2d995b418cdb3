"""Paced reservoir: a random draw from the past that forgets as fast as the model learns what it holds.

How long images should stay depends on the model. A reservoir keeps them longer and longer: a young model learns most
from that, but after some thousand steps it knows its few images by heart (their loss is a tenth of what it was) and
learns nothing more. A buffer that changes quickly is never learned at all. Both show without labels, in the scores of
eq. (3): the median score of the buffer is that of new images at first, and a seventh of it once the buffer is known by
heart.

So time passes for the buffer only while it is understood better than new images by more than `learned` says. Every
image draws one key when it arrives, and the N largest keys stay (`random_keys.py`); the keys of the buffer fall while
time passes. A device that joins late, with a model that is trained already, is at its pace from the first round on.
"""

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from sofed_flwr.core.records import Pool, Selection
from sofed_flwr.policies.base import Scorer, WeakView, ranked_lowest_if_not_finite
from sofed_flwr.policies.random_keys import gumbel_noise, largest, log_weights

KEY = "paced_key"
"""Not the decayed reservoir's, whose keys grow with time and would never leave here."""


@dataclass(frozen=True)
class PacedReservoir:
    """`beta` says how much importance counts, `learned` and `horizon` how fast images are forgotten (`pace`).

    An entry is rescored when its age is a multiple of `lazy_interval` (eq. 5).
    """

    beta: Annotated[float, Field(ge=0, le=100)]
    learned: Annotated[float, Field(gt=0)]
    horizon: Annotated[float, Field(gt=0)]
    lazy_interval: Annotated[int, Field(ge=1)]
    weak_view: WeakView

    def select(self, pool: Pool, capacity: int, scorer: Scorer, generator: torch.Generator) -> Selection:
        """Score what is due, let time pass for the buffer, draw keys for what has none, keep the largest."""
        due = (pool.ages % self.lazy_interval == 0) | pool.scores.isnan()
        scores = pool.scores.clone()
        scores[due] = ranked_lowest_if_not_finite(scorer.score(pool.images[due], self.weak_view))
        keys = pool.column(KEY)
        without = ~keys.isfinite()
        keys -= pace(scores[~pool.is_new], scores[pool.is_new], self.learned) / self.horizon
        keys[without] = gumbel_noise(int(without.sum()), generator) + log_weights(scores[without], self.beta)
        rescored = int((due & ~pool.is_new).sum())
        return Selection(largest(keys, capacity), scores, rescored, {KEY: keys})

    def carry_over(self, scores: Tensor, same_run: bool) -> Tensor:
        """Scores of an unrelated model say nothing of what this one has learned."""
        return scores if same_run else torch.full_like(scores, torch.nan)


def pace(held: Tensor, new: Tensor, learned: float) -> float:
    """How fast time passes for the buffer: 0 while it is not learned, 1 when it is known by heart.

    Medians, because a camera's noise is never learned. Of one segment, since the mean over time is what counts.
    """
    held, new = held[held.isfinite()], new[new.isfinite()]
    if not len(held) or not len(new) or new.median() <= 0:
        return 0.0
    return min(max(1 - float(held.median() / new.median()) / learned, 0.0), 1.0)
