"""FIFO replacement: the newest N. With a segment as large as the buffer, the buffer is the newest segment."""

import torch
from pydantic.dataclasses import dataclass

from sofed_flwr.core.records import Pool, Selection
from sofed_flwr.policies.base import ModelFree, Scorer


@dataclass(frozen=True)
class FIFO(ModelFree):
    """The paper's second baseline."""

    def select(self, pool: Pool, capacity: int, scorer: Scorer, generator: torch.Generator) -> Selection:
        """Oldest first, and of equal age in order of arrival: the last N are the newest."""
        by_arrival = torch.argsort(pool.ages, descending=True, stable=True)
        return Selection(by_arrival[-capacity:], pool.scores)
