"""The linear head: the probe's own solver on standardised features, as one plain `nn.Linear`.

Features are standardised for the solver alone: dimensions of different spread would be regularised differently. The
result is folded, w (x - mean) / std + b = (w / std) x + (b - (w / std) mean), so that no tool that loads the head has
to know of it.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from sofed_flwr.core.records import Features
from sofed_flwr.evaluation.linear import LinearProbe, fit_logistic, moments

DEFAULT_L2 = LinearProbe.l2
ITERATIONS = LinearProbe.max_iterations


class Solution(NamedTuple):
    """Weight (classes, d) and bias (classes,) for features as they are, in float64."""

    weight: Tensor
    bias: Tensor

    def logits(self, values: Tensor) -> Tensor:
        """Features (n, d) -> (n, classes)."""
        return values.double() @ self.weight.T + self.bias

    def as_module(self) -> nn.Linear:
        """The same in float32."""
        head = nn.Linear(self.weight.shape[1], self.weight.shape[0])
        with torch.no_grad():
            head.weight.copy_(self.weight)
            head.bias.copy_(self.bias)
        return head.requires_grad_(False)


def solve(features: Features, classes: int, l2: float) -> Solution:
    """Logistic regression; weights are rounded to float32 before the bias is folded, which so makes up for it."""
    values = features.values.double()
    mean, scale = moments(values)
    weight, bias = fit_logistic((values - mean) / scale, features.labels, classes, l2, ITERATIONS)
    folded = (weight / scale).float().double()
    return Solution(folded, bias - folded @ mean)
