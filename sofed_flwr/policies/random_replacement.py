"""Random replacement (RR): a uniform N of B ∪ X at every iteration.

An image survives each iteration with probability one half, so the past is forgotten geometrically.
"""

import torch
from pydantic.dataclasses import dataclass

from sofed_flwr.core.records import Pool, Selection
from sofed_flwr.policies.base import ModelFree, Scorer


@dataclass(frozen=True)
class RandomReplacement(ModelFree):
    """The paper's first baseline."""

    def select(self, pool: Pool, capacity: int, scorer: Scorer, generator: torch.Generator) -> Selection:
        """Draw without replacement."""
        drawn = torch.randperm(len(pool), generator=generator)[:capacity]
        return Selection(drawn.sort().values, pool.scores)
