"""Whether the encoder has collapsed: one number from features, without labels (SimSiam, arXiv 2011.10566, sec. 4.1).

BYOL-like methods may fall into the constant solution: the loss is then perfect and the features are useless, which only
their spread shows. Features that are not finite give NaN.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

COLLAPSED = 0.1
"""A `feature_std` below this raises an alarm; trained encoders of ours have 0.4 to 0.7."""
FALL = 0.5
"""And below this share of the untrained network's: some networks begin with less than COLLAPSED."""


class Alarm(NamedTuple):
    """Name of the metric, and its text."""

    name: str
    sentence: str
    reason: str


def feature_std(values: Tensor) -> float:
    """Spread of the l2-normalised features (n, d), n >= 2: std per dimension, mean over dimensions, times sqrt(d).

    Isotropic zero-mean features give 1 and a constant vector gives 0, whatever d. Features after a ReLU have a mean
    and so stay below 1 in good health: half-normal ones give sqrt(1 - 2/pi) = 0.60. A fall means more than the level.
    """
    unit = functional.normalize(values.float(), dim=1)
    return unit.std(dim=0).mean().item() * math.sqrt(values.shape[1])


def usable(values: Tensor) -> bool:
    """Whether every feature vector (n, d) has a length; a NaN, an infinity and squares beyond float32 have none."""
    return bool(torch.linalg.vector_norm(values.float(), dim=1).isfinite().all())


def alarm(round_number: int, spread: float | None, untrained: float | None) -> Alarm | None:
    """The alarm for a round's `feature_std`, compared with the untrained network's; None: not measured."""
    if spread is None:
        return None
    if not math.isfinite(spread):
        reason = "the model maps images to values that are not finite, so no accuracy is measured"
        return Alarm("features_not_finite", "the encoder has no features", reason)
    before = 1.0 if untrained is None else untrained
    if round_number > 0 and spread < min(COLLAPSED, FALL * before):
        reason = f"all images look alike to it (feature_std {spread:.2g}, below {COLLAPSED:g})"
        return Alarm("collapsed", "the encoder has collapsed", reason)
    return None
