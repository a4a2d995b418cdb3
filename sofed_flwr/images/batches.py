"""What people hold their images in -> pixels, uint8 (n, 3, H, W): arrays, tensors, pictures of PIL, files.

An array is taken as it is, at its own size and with its colours first or last, whichever of the two axes has three
entries. Pictures and files have all sizes, so they become as large as the images of training, by the one rule for that
(`decoding.py`). Whatever would need a guess is refused: floats (which range?), one channel, three entries on both axes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sofed_flwr.core.records import Pixels
from sofed_flwr.images.decoding import Picture, Size, decode, pixels_of

Image = str | Path | Picture
Images = Tensor | NDArray[Any] | Image | Sequence[Image]

EXPECTED = "expected pixels: uint8 of shape (n, 3, H, W) or (n, H, W, 3), n at least 1, values 0 to 255"


def as_pixels(images: Images, size: Size | None) -> Tensor:
    """`size` is what pictures and files are scaled to; None refuses them."""
    if isinstance(images, np.ndarray):
        _refuse_other_than_pixels(str(images.dtype), images.shape)
        return _colours_first(torch.from_numpy(images.copy(order="C")))  # it may be read-only, or run backwards
    if isinstance(images, Tensor):
        _refuse_other_than_pixels(str(images.dtype).removeprefix("torch."), tuple(images.shape))
        return _colours_first(images)
    several = [images] if isinstance(images, Image) else images
    if not isinstance(several, list | tuple) or not several:
        raise TypeError(f"images are {_described(images)}; {EXPECTED}, or pictures of PIL, or paths")
    if any(isinstance(image, np.ndarray | Tensor) for image in several):
        raise TypeError("images are a list of arrays; make one of them: np.stack(images), torch.stack(images)")
    return torch.from_numpy(np.stack([read_image(image, size) for image in several]))


def read_image(image: Image, size: Size | None) -> Pixels:
    """One picture or file, (3, *size); what is wrong with it is one sentence, and a missing file an `OSError`."""
    if not isinstance(image, Image):
        raise TypeError(f"an image of the list is {_described(image)}; expected a picture of PIL, or a path")
    if size is None:
        raise ValueError("the model does not say the size of its images; scale them yourself and give an array")
    try:
        return pixels_of(image, size) if isinstance(image, Picture) else decode(image, size)
    except Exception as error:  # PIL's decoders raise whatever a broken file makes them stumble over
        if isinstance(error, OSError) and error.filename is not None:
            raise
        name = "the picture" if isinstance(image, Picture) else image
        raise ValueError(f"{name} cannot be read as an image ({error or type(error).__name__})") from error


def _colours_first(images: Tensor) -> Tensor:
    return images if images.shape[1] == 3 else images.permute(0, 3, 1, 2)


def _refuse_other_than_pixels(dtype: str, shape: tuple[int, ...]) -> None:
    if len(shape) == 3:
        raise ValueError(f"images are {shape}, which is one image without an axis for several; add it: images[None]")
    colours = [axis for axis in (1, 3) if len(shape) == 4 and shape[axis] == 3]
    if dtype != "uint8" or not colours or 0 in shape:
        raise ValueError(f"images are {dtype} {shape}; {EXPECTED}")
    if len(colours) == 2:
        raise ValueError(f"images are {dtype} {shape}, which can be read with colours first or last; {EXPECTED}")


def _described(value: object) -> str:
    return "an empty list" if isinstance(value, list | tuple) and not value else f"of type {type(value).__name__}"
