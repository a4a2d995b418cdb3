"""Image files -> pixels: the one place that knows file formats, and whatever is wrong with a file.

Refused is what cannot be turned into one 8-bit RGB picture without guessing: gray of more than 8 bits (which range?),
CMYK (which inks?) and moving pictures (which frame?), beside everything broken or absurdly large.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from PIL import Image, ImageOps

if TYPE_CHECKING:  # the collector lives beside training on a small device, and does without torch
    from sofed_flwr.contracts import Pixels

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The only decoders files are given to: PIL has others that start programs."""


def has_image_name(name: str) -> bool:
    """Whether the extension is one of ours; a hidden file is never an image."""
    _, dot, extension = name.lower().rpartition(".")
    return not name.startswith(".") and dot + extension in _extensions()


@cache
def _extensions() -> frozenset[str]:
    return frozenset(extension for extension, kind in Image.registered_extensions().items() if kind in FORMATS)


def decode(file: str | Path | BinaryIO, size: int) -> Pixels:
    """The middle square of an upright image, (3, size, size); a broken file raises whatever PIL stumbles over."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file, formats=FORMATS) as image:
            _refuse_ambiguous(image)
            image.draft("RGB", (2 * size, 2 * size))  # lets a large JPEG be decoded at a fraction of its size
            upright = ImageOps.exif_transpose(image).convert("RGB")
    square = ImageOps.fit(upright, (size, size), Image.Resampling.BICUBIC)
    return np.asarray(square).transpose(2, 0, 1)


def _refuse_ambiguous(image: Image.Image) -> None:
    if image.mode[0] in "IF":
        raise ValueError(f"pixels of mode {image.mode} are deeper than 8 bits")
    if image.mode == "CMYK":
        raise ValueError("CMYK has no colours without its ink profile")
    # A phone's JPEG (MPO) carries more pictures behind the photo, which is the first and the one meant.
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise ValueError("the picture moves")
