"""Projector and predictor: one MLP from a row of widths, and the encoder that ends in one."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field
from torch import nn

Widths = Annotated[list[Annotated[int, Field(ge=1, le=65536)]], Field(min_length=2, max_length=16)]
"""Widths after the input."""


def mlp(widths: Sequence[int]) -> nn.Sequential:
    """Linear-BatchNorm-ReLU for each step but the last, which is a plain Linear.

    A Linear in front of a BatchNorm has no bias: the normalisation would remove it.
    """
    layers: list[nn.Module] = []
    for into, out in list(pairwise(widths))[:-1]:
        layers += [nn.Linear(into, out, bias=False), nn.BatchNorm1d(out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def with_projector(encoder: nn.Module, projector: Sequence[int]) -> nn.Sequential:
    """The paper's W: a backbone and its projector."""
    width: Any = encoder.feature_dim
    return nn.Sequential(OrderedDict(backbone=encoder, projector=mlp([width, *projector])))


def predictor_of(projector: Sequence[int], predictor: Sequence[int]) -> nn.Sequential:
    """The paper's W_p: predicts the target's projection from the online one."""
    if predictor[-1] != projector[-1]:
        raise ValueError(f"predictor ends in {predictor[-1]}, but has to predict a projection of {projector[-1]}")
    return mlp([projector[-1], *predictor])
