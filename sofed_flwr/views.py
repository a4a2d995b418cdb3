"""From pixels to network input: the only place where uint8 becomes float.

Training views are BYOL's strong augmentations, drawn per image and computed per batch by kornia. Weak views are for
scoring: deterministic, so that a score depends on the image and the model alone (paper, sec. III-C).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated

import kornia.augmentation as kornia
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

MEAN, STD = 0.5, 0.25
"""One normalisation for every dataset: a device cannot know the statistics of images it has not seen."""

Unit = Annotated[float, Field(ge=0, le=1)]


def network_input(images: Tensor) -> Tensor:
    """Un-augmented pixels, normalised, in the memory layout that convolutions are fastest with."""
    return _normalised(_unit_range(images))


def flip(images: Tensor) -> Tensor:
    """The default weak view: mirror each image."""
    return images.flip(-1)


WEAK_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {"flip": flip}


@dataclass(frozen=True)
class TrainingViews:
    """One strongly augmented view of each image of a batch (paper, sec. II-A: t ~ T)."""

    crop_scale: tuple[Unit, Unit]
    flip: Unit
    brightness: float
    contrast: float
    saturation: float
    hue: Annotated[float, Field(ge=0, le=0.5)]
    jitter: Unit
    gray: Unit

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Draw with `generator` alone: kornia uses torch's global state, which is borrowed and given back."""
        height, width = images.shape[-2:]
        seed = int(torch.randint(2**62, (1,), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _normalised(_pipeline(self, height, width)(_unit_range(images)))


@lru_cache(maxsize=8)
def _pipeline(views: TrainingViews, height: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        kornia.RandomResizedCrop((height, width), scale=views.crop_scale, cropping_mode="resample"),
        kornia.RandomHorizontalFlip(p=views.flip),
        kornia.ColorJitter(views.brightness, views.contrast, views.saturation, views.hue, p=views.jitter),
        kornia.RandomGrayscale(p=views.gray),
    )


def _unit_range(images: Tensor) -> Tensor:
    return images.to(torch.float32).div_(255)


def _normalised(images: Tensor) -> Tensor:
    return images.sub(MEAN).div_(STD).contiguous(memory_format=torch.channels_last)
