"""Reservoir sampling: a uniform N of everything the device has ever seen.

Each image draws one uniform key when it arrives and the N largest keys stay, which is uniform over the stream whatever
its length. The key is kept as the entry's score, so the reservoir survives a restart together with the buffer.
"""

import torch
from pydantic.dataclasses import dataclass

from sofed_flwr.core.records import Pool, Selection
from sofed_flwr.policies.base import ModelFree, Scorer


@dataclass(frozen=True)
class Reservoir(ModelFree):
    """Uniform over the past, where random replacement prefers the present."""

    def select(self, pool: Pool, capacity: int, scorer: Scorer, generator: torch.Generator) -> Selection:
        """Draw keys for the new entries, keep the largest."""
        keys = torch.where(pool.scores.isnan(), torch.rand(len(pool), generator=generator), pool.scores)
        keep = torch.topk(keys, capacity, sorted=False).indices.sort().values
        return Selection(keep, keys)
