"""Random keys, of which the N largest stay: a weighted draw without replacement that may go on for ever.

With Gumbel noise as the key this is a plain reservoir, and a constant added to a key multiplies its image's weight
(Efraimidis and Spirakis, 2006, in logarithms). Here the weight is exp(β z) for an image whose score (eq. 3) is z
standard deviations above its segment's mean.
"""

import torch
from torch import Tensor

from sofed_flwr.policies.base import standardised

LARGEST_Z = 2.0
"""Standard deviations: one outlier, such as the noise of a failing camera, must not stay for e^9 iterations."""


def gumbel_noise(count: int, generator: torch.Generator) -> Tensor:
    """One key for each of `count` images of equal weight, float64."""
    uniform = torch.rand(count, generator=generator, dtype=torch.float64)
    return -torch.log(-torch.log(uniform.clamp(1e-12, 1 - 1e-12)))


def log_weights(scores: Tensor, beta: float) -> Tensor:
    """β z for the scores of one segment."""
    return beta * standardised(scores.double()).clamp(-LARGEST_Z, LARGEST_Z)


def largest(keys: Tensor, capacity: int) -> Tensor:
    """Indices (capacity,) of the keys that stay, in order of the pool."""
    return torch.topk(keys, capacity, sorted=False).indices.sort().values
