"""Weighted k-nearest-neighbour accuracy of frozen features (Wu et al., arXiv 1805.01978), without any training.

k = 200 and T = 0.1 are the values of EasyFL, Orchestra and lightly's benchmarks, so figures can be compared; lightly
once moved T to 0.07 and could no longer reproduce its own table (lightly#1824).
"""

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional

from sofed_flwr.core.records import Features
from sofed_flwr.evaluation.base import accuracy

SIMILARITIES = 2**24
"""How many similarities are held at once: 64 MB of float32, whatever the size of the test set."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class KNN:
    """The k most similar train images vote with weight exp(cosine / temperature)."""

    k: Annotated[int, Field(ge=1)] = 200
    temperature: Annotated[float, Field(gt=0)] = 0.1

    def run(self, train: Features, test: Features) -> Iterator[tuple[str, float]]:
        """Yield ("knn", top-1 accuracy in percent); a test class without a train image counts as wrong."""
        classes, targets = torch.unique(train.labels, return_inverse=True)  # labels may be any numbers
        rows = max(1, SIMILARITIES // len(targets))
        predicted = [
            knn_predict(block, train.values, targets, len(classes), self.k, self.temperature)
            for block in torch.split(test.values, rows)
        ]
        yield "knn", accuracy(classes[torch.cat(predicted)], test.labels)


def knn_predict(queries: Tensor, bank: Tensor, bank_labels: Tensor, classes: int, k: int, temperature: float) -> Tensor:
    """The class with most votes: (n, d) queries against a (m, d) bank with labels (m,) -> (n,).

    Equal votes go to the lower class; k is capped at m.
    """
    similarity = functional.normalize(queries, dim=1) @ functional.normalize(bank, dim=1).T  # (n, m)
    top, neighbours = similarity.topk(min(k, len(bank)), dim=1)  # (n, k)
    # relative to the best neighbour: the same winner, and a small temperature neither overflows nor underflows
    weights = ((top - top[:, :1]) / temperature).exp()
    votes = weights.new_zeros(len(queries), classes).scatter_add_(1, bank_labels[neighbours], weights)
    return votes.argmax(dim=1)
