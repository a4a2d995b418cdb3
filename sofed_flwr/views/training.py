"""Training views: BYOL's strong augmentations, drawn per image and computed per batch by kornia."""

from functools import lru_cache
from typing import Annotated

import kornia.augmentation as kornia
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from sofed_flwr.views.pixels import normalised, unit_range

Unit = Annotated[float, Field(ge=0, le=1)]


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
        """Draw with `generator` only: kornia uses torch's global state, which is restored afterwards."""
        height, width = images.shape[-2:]
        seed = int(torch.randint(2**62, (1,), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return normalised(_pipeline(self, height, width)(unit_range(images)))


@lru_cache(maxsize=8)
def _pipeline(views: TrainingViews, height: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        kornia.RandomResizedCrop((height, width), scale=views.crop_scale, cropping_mode="resample"),
        kornia.RandomHorizontalFlip(p=views.flip),
        kornia.ColorJitter(views.brightness, views.contrast, views.saturation, views.hue, p=views.jitter),
        kornia.RandomGrayscale(p=views.gray),
    )
