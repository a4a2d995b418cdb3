"""Weak views, for scoring: pixels in, pixels out, and deterministic (paper, sec. III-C).

A score must depend on the image and the model alone. Where the paper's weak view has a random parameter, it is drawn
from a hash of the image's own pixels: it varies over images like a random one, but is always the same for
one image, in every batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

JITTER = 0.4
"""Strength of the weak colour jitter: brightness, contrast and saturation as in training."""
LUMA = (299, 587, 114)
"""Thousandths of red, green and blue in gray (ITU-R BT.601): whole numbers are exact on every machine."""


def flip(images: Tensor) -> Tensor:
    """The default weak view: mirror each image."""
    return images.flip(-1)


def crop(images: Tensor) -> Tensor:
    """Crop to 7/8 of each side, at a position drawn from the image's pixels, and scale it back."""
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
    """Change brightness, then contrast, then saturation, each by a factor drawn from the image's pixels.

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
    """32 bits -> 32 bits, one to one, spreading neighbours; the multiplier has 27 bits, so no product overflows."""
    for _ in range(2):
        numbers = ((numbers ^ (numbers >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return numbers ^ (numbers >> 16)


def _window(size: int, draws: Tensor) -> Tensor:
    """Positions (n, size - margin) of one side, with the margin of size / 8 before and after them as drawn."""
    margin = max(1, size // 8)
    return (draws * (margin + 1)).long()[:, None] + torch.arange(size - margin, device=draws.device)


def _luma(images: Tensor) -> Tensor:
    """Gray values 0 .. 255 (n, 1, H, W) as int32, rounded."""
    weights = torch.tensor(LUMA, dtype=torch.int32, device=images.device)[:, None, None]
    return (images * weights).sum(dim=1, keepdim=True, dtype=torch.int32).add_(500).div_(1000, rounding_mode="floor")


def _pixels(values: Tensor) -> Tensor:
    return values.round_().clamp_(0, 255).to(torch.uint8)
