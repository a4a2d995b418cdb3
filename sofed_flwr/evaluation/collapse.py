"""Is the encoder collapsing? One number from features, without labels (SimSiam, arXiv 2011.10566, sec. 4.1).

BYOL-like methods may fall into the constant solution: the loss is then perfect and the features are useless, and only
a look at their spread shows it.
"""

import math

from torch import Tensor
from torch.nn import functional

COLLAPSED = 0.1
"""A `feature_std` below this is an alarm; trained encoders of ours have 0.4 to 0.7."""


def feature_std(values: Tensor) -> float:
    """Spread of the l2-normalised features (n, d), n >= 2: std per dimension, mean over dimensions, times sqrt(d).

    Isotropic zero-mean features give 1 and a constant vector gives 0, whatever d. Features after a ReLU have a mean
    and so stay below 1 in good health: half-normal ones give sqrt(1 - 2/pi) = 0.60. Watch the fall, not the level.
    """
    unit = functional.normalize(values.float(), dim=1)
    return unit.std(dim=0).mean().item() * math.sqrt(values.shape[1])
