"""Image files -> pixels: the one place that knows file formats and their faults.

An image that cannot become one 8-bit RGB picture without a guess is refused: gray of more than 8 bits (which range?),
CMYK (which inks?) and animations (which frame?). So are broken and too large ones. What is transparent is seen on
white, as in most viewers: the colours that a file holds below it are anything, mostly black.

A file of some hundred KB may decode to gigabytes, for which the kernel kills the process. So the size in the header is
compared with a limit before anything is decoded. A JPEG may be larger where it can be decoded at a fraction of its
size: in one pass over the file, block by block (a phone's 200 megapixels become 3).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

if TYPE_CHECKING:  # the collector runs beside training on a small device, and must not load torch
    from sofed_flwr.core.records import Pixels

Picture = Image.Image
Size = tuple[int, int]
"""Height and width."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""The only decoders in use: PIL has others that start programs."""
RAW = {"arw", "cr2", "cr3", "dng", "nef", "orf", "pef", "raf", "rw2", "srw"}
NOT_READ = {"avif", "heic", "heif", "hif", "j2k", "jp2", "jxl", "psd"} | RAW
"""Extensions that photos have, too: their owner must not take them for read."""
MAX_PIXELS = 50_000_000
"""PIL needs 4 bytes for each, 8 where it has to convert them, and 9 to find what is transparent."""
BYTES_PER_PIXEL = 8
"""No format needs more than this for a pixel it cannot compress; some decoders read the whole file at once."""
SMALLEST_SCALE = 8
"""A JPEG's blocks are 8 x 8 pixels, and one pixel per block is the least that can be decoded."""
OPAQUE = 255

SEQUENTIAL = (0xC0, 0xC1)
START_OF_SCAN = 0xDA
WITHOUT_LENGTH = (0x00, 0x01, *range(0xD0, 0xDA), 0xFF)
"""Markers without a length: before a scan they are unusual, and what follows is ambiguous."""


def has_image_name(name: str) -> bool:
    """Whether the extension is one of ours; a hidden file is never an image."""
    _, dot, extension = name.lower().rpartition(".")
    return not name.startswith(".") and dot + extension in _extensions()


def why_not_read(name: str) -> str | None:
    """Of a photo whose format is known and not decoded; None of any other name, and of a hidden file."""
    extension = name.lower().rpartition(".")[2]
    if name.startswith(".") or extension not in NOT_READ:
        return None
    return f"{extension.upper()} is not read; save it as JPEG or PNG"


@cache
def _extensions() -> frozenset[str]:
    return frozenset(extension for extension, kind in Image.registered_extensions().items() if kind in FORMATS)


def decode(file: str | Path | BinaryIO, size: int | Size, max_pixels: int = MAX_PIXELS) -> Pixels:
    """The middle of an upright image, (3, *size), one number for a square; a broken file raises any error of PIL."""
    height, width = (size, size) if isinstance(size, int) else size
    with Path(file).open("rb") if isinstance(file, str | Path) else nullcontext(file) as stream:
        if stream.seek(0, 2) > max_pixels * BYTES_PER_PIXEL:
            raise ValueError(f"the file has more than {max_pixels * BYTES_PER_PIXEL} bytes")
        shrinkable = _is_decoded_in_one_pass(stream)
        stream.seek(0)
        with _refusing_above(max_pixels * (SMALLEST_SCALE**2 if shrinkable else 1)):
            image = _opened(stream, ("JPEG",) if shrinkable else FORMATS)
            _refuse_ambiguous(image)
            image.draft("RGB", (2 * width, 2 * height))  # lets a large JPEG be decoded at a fraction of its size
            if image.width * image.height > max_pixels:
                raise ValueError(f"{image.width} x {image.height} pixels are more than {max_pixels}")
            ImageOps.exif_transpose(image, in_place=True)
        image = _colours(image)  # the same name, so that only one of them is in memory
        return _middle(image, (height, width))


def _opened(stream: BinaryIO, formats: tuple[str, ...]) -> Picture:
    try:
        return Image.open(stream, formats=formats)
    except UnidentifiedImageError as error:  # it names the stream, which means nothing to a user
        raise ValueError(f"not an image in one of the formats {', '.join(FORMATS)}") from error


def pixels_of(picture: Picture, size: Size) -> Pixels:
    """The same of a picture that is in memory already; it is not changed."""
    _refuse_ambiguous(picture)
    return _middle(_colours(ImageOps.exif_transpose(picture)), size)


def _colours(image: Picture) -> Picture:
    """In RGB, and in RGBA where a pixel is transparent: of that, the scaled picture is put on white, which is small."""
    image.load()
    if image.has_transparency_data:
        with_alpha = image if image.mode == "RGBA" else image.convert("RGBA")
        if with_alpha.getchannel("A").getextrema() != (OPAQUE, OPAQUE):
            return with_alpha
        del with_alpha
    return image if image.mode == "RGB" else image.convert("RGB")


def _middle(colours: Picture, size: Size) -> Pixels:
    """The largest middle part of the wanted proportions, scaled."""
    height, width = size
    middle = ImageOps.fit(colours, (width, height), Image.Resampling.BICUBIC)
    if middle.mode == "RGBA":
        middle = Image.alpha_composite(Image.new("RGBA", middle.size, "white"), middle).convert("RGB")
    return np.asarray(middle).transpose(2, 0, 1)


def _is_decoded_in_one_pass(stream: BinaryIO) -> bool:
    """Whether this is a JPEG with all its colours in one scan (ITU-T T.81, annex B).

    Of any other, a progressive one for example, the decoder holds every coefficient, however few pixels are wanted.
    """
    stream.seek(0)
    if stream.read(2) != b"\xff\xd8":
        return False
    colours = 0
    while len(head := stream.read(4)) == 4 and head[0] == 0xFF and head[1] not in WITHOUT_LENGTH:
        length = int.from_bytes(head[2:], "big")
        if length < 2:
            break
        content = stream.read(length - 2)
        if head[1] in SEQUENTIAL and len(content) > 5:
            colours = content[5]
        elif head[1] == START_OF_SCAN:
            return bool(colours) and content[:1] == bytes([colours])
    return False


@contextmanager
def _refusing_above(pixels: int) -> Iterator[None]:
    """Set PIL's own limit, which it applies to canvases, tiles and frames before they are decoded."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = pixels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _refuse_ambiguous(image: Image.Image) -> None:
    if image.mode[0] in "IF":
        raise ValueError(f"pixels of mode {image.mode} are deeper than 8 bits")
    if image.mode == "CMYK":
        raise ValueError("CMYK has no colours without its ink profile")
    # a phone's JPEG (MPO) may hold more pictures after the photo, which is the first
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise ValueError("an animation of several frames")
