"""Projector and predictor: one MLP from a row of widths."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def mlp(widths: Sequence[int]) -> nn.Sequential:
    """Linear-BatchNorm-ReLU for each step but the last, which is a plain Linear.

    A Linear in front of a BatchNorm has no bias: the normalisation would remove it.
    """
    layers: list[nn.Module] = []
    for into, out in list(pairwise(widths))[:-1]:
        layers += [nn.Linear(into, out, bias=False), nn.BatchNorm1d(out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))
