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


def vicreg(first: Tensor, second: Tensor, variance: float, invariance: float, covariance: float) -> Tensor:
    """VICReg's (Bardes et al., 2022): twins agree, every dimension varies by 1, no two dimensions say the same.

    The weights are those of the three terms; n is at least 2.
    """
    agreement = functional.mse_loss(first, second)
    spread = sum(functional.relu(1 - (views.var(dim=0) + 1e-4).sqrt()).mean() for views in (first, second)) / 2
    redundancy = sum(_off_diagonal(views).square().sum() / views.shape[1] for views in (first, second))
    return invariance * agreement + variance * spread + covariance * redundancy


def _off_diagonal(views: Tensor) -> Tensor:
    covariance = torch.cov(views.T)
    return covariance - torch.diag(covariance.diag())
