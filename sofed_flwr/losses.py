"""The losses of the self-supervised methods: pure functions of embeddings (n, d), means over a batch."""

import torch
from torch import Tensor
from torch.nn import functional


def dissimilarity(prediction: Tensor, target: Tensor) -> Tensor:
    """Eq. (1): 2 - 2 cos."""
    return (2 - 2 * functional.cosine_similarity(prediction, target)).mean()


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """SimCLR's (Chen et al., 2020): each view finds its twin among the 2n - 1 other views of the batch."""
    views = functional.normalize(torch.cat([first, second]))
    similarity = views @ views.T / temperature
    itself = torch.eye(len(views), dtype=torch.bool, device=views.device)
    twins = torch.arange(len(views), device=views.device).roll(len(first))
    return functional.cross_entropy(similarity.masked_fill(itself, -torch.inf), twins)


def info_nce(query: Tensor, key: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """MoCo's (He et al., 2020): each query finds its key among the `negatives` (k, d), which have unit length."""
    query, key = functional.normalize(query), functional.normalize(key)
    positive = (query * key).sum(dim=1, keepdim=True)
    logits = torch.cat([positive, query @ negatives.T], dim=1) / temperature
    return functional.cross_entropy(logits, torch.zeros(len(query), dtype=torch.int64, device=query.device))
