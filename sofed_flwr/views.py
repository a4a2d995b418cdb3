"""From pixels to network input: the only place where uint8 becomes float.

Training views are BYOL's strong augmentations, drawn per image and computed per batch by kornia. Weak views are for
scoring: pixels in, pixels out, and deterministic, so that a score depends on the image and the model alone (paper,
sec. III-C). Where the paper's weak view has a random parameter, it is drawn from a hash of the image's own pixels: as
varied over images as a random one, yet the same for an image wherever, whenever and beside whatever it is scored.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated

import kornia.augmentation as kornia
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional

MEAN, STD = 0.5, 0.25
"""One normalisation for every dataset: a device cannot know the statistics of images it has not seen."""

JITTER = 0.4
"""Strength of the weak colour jitter: brightness, contrast and saturation as in training."""

LUMA = (299, 587, 114)
"""Thousandths of red, green and blue in gray (ITU-R BT.601): whole numbers are exact on every machine."""

Unit = Annotated[float, Field(ge=0, le=1)]


def network_input(images: Tensor) -> Tensor:
    """Un-augmented pixels, normalised, in the memory layout that convolutions are fastest with."""
    return _normalised(_unit_range(images))


def flip(images: Tensor) -> Tensor:
    """The default weak view: mirror each image."""
    return images.flip(-1)


def crop(images: Tensor) -> Tensor:
    """Cut 7/8 of each side out of a place of the image's own, and scale it back."""
    height, width = images.shape[-2:]
    down, right = _own_draws(images, 2)
    rows, columns = _window(height, down), _window(width, right)
    cut = images.gather(2, rows[:, None, :, None].expand(-1, 3, -1, width))
    cut = cut.gather(3, columns[:, None, None, :].expand(-1, 3, cut.shape[2], -1))
    return _pixels(functional.interpolate(cut.float(), (height, width), mode="bilinear", antialias=True))


def gray(images: Tensor) -> Tensor:
    """Take the colour away."""
    return _luma(images).to(torch.uint8).repeat(1, 3, 1, 1)


def jitter(images: Tensor) -> Tensor:
    """Change brightness, then contrast, then saturation, each by a factor of the image's own.

    Pixels are rounded after each step, as PIL does, and means are sums of whole numbers: floating point sums would
    differ in their last bits with the size of the batch.
    """
    factors = 1 + JITTER * (2 * _own_draws(images, 3) - 1)
    brightness, contrast, saturation = factors[..., None, None, None]
    images = _pixels(images * brightness)
    mean = _luma(images).sum(dim=(1, 2, 3), keepdim=True) / (images.shape[-2] * images.shape[-1])
    images = _pixels(mean + (images - mean) * contrast)
    luma = _luma(images)
    return _pixels(luma + (images - luma) * saturation)


WEAK_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {"flip": flip, "crop": crop, "gray": gray, "jitter": jitter}


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


def _own_draws(images: Tensor, count: int) -> Tensor:
    """`count` numbers in [0, 1) per image, (count, n): a hash of its pixels, the same on every machine.

    Pixels are summed with 20-bit weights that a fixed mixing gives to positions. All numbers are whole and, up to 2^25
    values per image, exact in float64, so neither the order of summation nor the batch can change a bit.
    """
    pixels = images.flatten(1).double()
    weights = _mixed(torch.arange(1, pixels.shape[1] + 1, device=images.device)) >> 12
    own = (pixels @ weights.double()).long()
    streams = torch.arange(1, count + 1, device=images.device)[:, None] * 0x9E3779B9
    return (_mixed((own + streams) & 0xFFFFFFFF) >> 8).float() / 2**24


def _mixed(numbers: Tensor) -> Tensor:
    """32 bits -> 32 bits, one to one, neighbours sent far apart; the multiplier has 27 bits: no product overflows."""
    for _ in range(2):
        numbers = ((numbers ^ (numbers >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return numbers ^ (numbers >> 16)


def _window(size: int, draws: Tensor) -> Tensor:
    """Positions (n, size - margin) of one side, the margin of size / 8 being before and behind them as drawn."""
    margin = max(1, size // 8)
    return (draws * (margin + 1)).long()[:, None] + torch.arange(size - margin, device=draws.device)


def _luma(images: Tensor) -> Tensor:
    """Gray values 0 .. 255 (n, 1, H, W) as int32, rounded."""
    weights = torch.tensor(LUMA, dtype=torch.int32, device=images.device)[:, None, None]
    return (images * weights).sum(dim=1, keepdim=True, dtype=torch.int32).add_(500).div_(1000, rounding_mode="floor")


def _pixels(values: Tensor) -> Tensor:
    return values.round_().clamp_(0, 255).to(torch.uint8)


def _unit_range(images: Tensor) -> Tensor:
    return images.to(torch.float32).div_(255)


def _normalised(images: Tensor) -> Tensor:
    return images.sub(MEAN).div_(STD).contiguous(memory_format=torch.channels_last)
