"""Reservoir sampling: a uniform N of everything the device has ever seen.

Each image draws one uniform key when it arrives and the N largest keys stay, which is uniform over the stream whatever
its length. The key is a column of the buffer, so the reservoir survives a restart. It is not the score: a device may
come from a run of another policy, whose scores would never leave among keys between 0 and 1.
"""

import torch
from pydantic.dataclasses import dataclass

from sofed_flwr.core.records import Pool, Selection
from sofed_flwr.policies.base import ModelFree, Scorer

KEY = "uniform_key"


@dataclass(frozen=True)
class Reservoir(ModelFree):
    """Uniform over the past, where random replacement prefers the present."""

    def select(self, pool: Pool, capacity: int, scorer: Scorer, generator: torch.Generator) -> Selection:
        """Draw keys for the new entries, keep the largest."""
        known, drawn = pool.column(KEY), torch.rand(len(pool), generator=generator)
        keys = torch.where(known.isfinite(), known, drawn.double())
        keep = torch.topk(keys, capacity, sorted=False).indices.sort().values
        return Selection(keep, pool.scores, columns={KEY: keys})
