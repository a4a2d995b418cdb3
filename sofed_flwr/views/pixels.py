"""From pixels to network input: the only place where uint8 becomes float.

One normalisation for every dataset: a device cannot know the statistics of images it has not seen.
"""

import torch
from torch import Tensor

MEAN, STD = 0.5, 0.25


def network_input(images: Tensor) -> Tensor:
    """Pixels as they are, for scoring and features."""
    return normalised(unit_range(images))


def unit_range(images: Tensor) -> Tensor:
    """0 .. 255 -> 0 .. 1."""
    return images.to(torch.float32).div_(255)


def normalised(images: Tensor) -> Tensor:
    """Unit range -> network input, in the memory layout that convolutions are fastest with."""
    return standardised(images).contiguous(memory_format=torch.channels_last)


def standardised(images: Tensor) -> Tensor:
    """The same in the layout the images have: a graph that is exported has no use for another."""
    return images.sub(MEAN).div_(STD)
