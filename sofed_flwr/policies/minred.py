"""Minimum redundancy, and importance decides: of the two most alike images, the better understood one leaves.

MinRed (Purushwalkam et al., 2022) keeps a buffer diverse by dropping the image closest to its nearest neighbour. Of a
closest pair either image would do; here the one with the lower score (eq. 3) leaves. Features come from the pass that
computes the score and are noted with the image, so only the new segment passes through the model.
"""

from dataclasses import replace

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional

from sofed_flwr.core.records import Pool, Selection
from sofed_flwr.policies.base import ModelFree, Scorer, WeakView, ranked_lowest_if_not_finite

FEATURES = "features"


@dataclass(frozen=True)
class MinRed(ModelFree):
    """Cosine similarity of backbone features as they were on arrival."""

    weak_view: WeakView

    def select(self, pool: Pool, capacity: int, scorer: Scorer, generator: torch.Generator) -> Selection:
        """Score what is new, then drop one of the closest pair until the rest fits."""
        noted = pool.columns.get(FEATURES, torch.full((len(pool), 1), torch.nan))
        due = pool.scores.isnan() | noted.isnan().any(dim=1)
        fresh, passed = scorer.score_with_features(pool.images[due], self.weak_view)
        if not due.all() and noted.shape[1] != passed.shape[1]:  # of another encoder
            return self.select(replace(pool, columns={}), capacity, scorer, generator)
        scores = pool.scores.index_put((due,), ranked_lowest_if_not_finite(fresh))
        features = noted.new_zeros(len(pool), passed.shape[1]) if due.all() else noted.clone()
        features[due] = functional.normalize(passed).nan_to_num().to(features.dtype)
        keep = least_redundant(features @ features.T, scores, capacity)
        return Selection(keep, scores, int((due & ~pool.is_new).sum()), {FEATURES: features})


def least_redundant(similarity: Tensor, scores: Tensor, count: int) -> Tensor:
    """Indices (count,) that remain when of the most similar pair (n, n) the lower score is dropped, again and again."""
    similarity = similarity.clone().fill_diagonal_(-torch.inf)
    remaining = torch.ones(len(scores), dtype=torch.bool)
    for _ in range(len(scores) - count):
        pair = divmod(int(similarity.argmax()), len(scores))
        dropped = min(pair, key=lambda entry: float(scores[entry]))
        remaining[dropped] = False
        similarity[dropped] = similarity[:, dropped] = -torch.inf
    return remaining.nonzero().flatten()
