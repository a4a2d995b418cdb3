"""How different the images of a buffer are, by their classes and by their features: pure functions of tensors."""

import torch
from torch import Tensor
from torch.nn import functional


def effective_number(weights: Tensor) -> float:
    """exp of the entropy of weights (n,) that sum to 1: k equal ones and nothing else give k."""
    positive = weights[weights > 0].double()
    return float(torch.exp(-(positive * positive.log()).sum()))


def effective_classes(labels: Tensor) -> float:
    """As many as equally frequent classes would give the same entropy; labels (n,), n at least 1."""
    counts = torch.unique(labels, return_counts=True)[1]
    return effective_number(counts / len(labels))


def vendi_score(features: Tensor) -> float:
    """How many images, all unlike each other, would be as diverse as these (Friedman and Dieng, 2023).

    The effective number of eigenvalues of the cosine similarities of features (n, d), over n: 1 for copies of one
    image, n for orthogonal features.
    """
    unit = functional.normalize(features.double(), dim=1)
    return effective_number(torch.linalg.eigvalsh(unit @ unit.T / len(unit)).clamp(min=0))
