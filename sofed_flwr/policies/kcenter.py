"""K-center greedy (Sener and Savarese, 2018): cover the pool with N balls as small as possible in feature space.

The greedy choice, always the entry farthest from all chosen ones, is at most twice as bad as the best cover. It starts
at a random entry; starting at index 0, as one public implementation does by mistake, would favour the oldest image.
"""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from sofed_flwr.core.records import Pool, Selection
from sofed_flwr.policies.base import ModelFree, Scorer


@dataclass(frozen=True)
class KCenter(ModelFree):
    """The paper's third baseline; features are the current backbone's, of the whole pool, at every iteration."""

    def select(self, pool: Pool, capacity: int, scorer: Scorer, generator: torch.Generator) -> Selection:
        """All buffer entries' features are recomputed, which counts as rescoring."""
        start = int(torch.randint(len(pool), (1,), generator=generator))
        keep = greedy_centers(scorer.features(pool.images), capacity, start)
        return Selection(keep.sort().values, pool.scores, rescored=int((~pool.is_new).sum()))


def greedy_centers(features: Tensor, count: int, start: int) -> Tensor:
    """Indices of `count` centers; one distance row per center, so memory stays linear in the pool."""
    centers = [start]
    nearest = torch.full((len(features),), torch.inf)
    while len(centers) < count:
        distance = torch.linalg.vector_norm(features - features[centers[-1]], dim=1)
        nearest = torch.minimum(nearest, distance.nan_to_num(nan=0.0))
        nearest[centers[-1]] = -1.0  # never chosen twice, also when all entries are the same image
        centers.append(int(nearest.argmax()))
    return torch.tensor(centers)
