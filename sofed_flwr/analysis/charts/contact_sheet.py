"""A contact sheet as PNG: small pictures in rows, a caption below each, a coloured frame around those that are marked.

The pictures are put together as they are, pixel by pixel, and only the text is drawn: hundreds of axes would take
seconds. Equal pictures give equal bytes.
"""

import io
import math
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imsave

from sofed_flwr.analysis.charts.panels import COLOURS
from sofed_flwr.core.records import Pixels

SIDE = 96
"""Pixels of a picture's longer side."""
FRAME, GAP, CAPTION, HEADING = 3, 6, 20, 40
"""Pixels: around a picture, between two of them, for the text below one and above all."""
COLUMNS, FEWEST_COLUMNS = 16, 6
"""Pictures side by side, at most; and the room for so many that a heading needs."""
DPI = 100


class Picture(NamedTuple):
    """Pixels (H, W, 3), no side longer than SIDE; pictures with the same `mark` have frames of the same colour."""

    pixels: Pixels
    caption: str
    mark: int | None = None


class Album(NamedTuple):
    """Pictures under one heading."""

    heading: str
    pictures: Sequence[Picture]


class _Text(NamedTuple):
    x: float
    y: float
    text: str
    size: float


def draw(album: Album) -> Pixels:
    """The sheet of one album, (H, W, 3)."""
    columns = min(COLUMNS, len(album.pictures))
    rows = math.ceil(len(album.pictures) / columns)
    width = max(columns, FEWEST_COLUMNS) * _pitch() + GAP
    canvas = np.full((HEADING + rows * (_pitch() + CAPTION), width, 3), 255, np.uint8)
    texts = [_Text(GAP + FRAME, HEADING / 2, album.heading, 11)]
    for number, picture in enumerate(album.pictures):
        row, column = divmod(number, columns)
        top, left = HEADING + row * (_pitch() + CAPTION), GAP + column * _pitch()
        _place(picture, canvas[top : top + _box(), left : left + _box()])
        texts.append(_Text(left + FRAME, top + _box() + CAPTION / 2, picture.caption, 7.5))
    return _written(canvas, texts)


def png(sheets: Sequence[Pixels]) -> bytes:
    """Sheets below each other, as a file."""
    widest = max(sheet.shape[1] for sheet in sheets)
    equal = [np.pad(sheet, ((0, 0), (0, widest - sheet.shape[1]), (0, 0)), constant_values=255) for sheet in sheets]
    buffer = io.BytesIO()
    imsave(buffer, np.concatenate(equal), format="png", metadata={"Software": ""})
    return buffer.getvalue()


def _place(picture: Picture, box: Pixels) -> None:
    """In the middle, within its frame."""
    if picture.mark is not None:
        box[:] = (np.array(to_rgb(COLOURS[picture.mark % len(COLOURS)])) * 255).astype(np.uint8)
    height, width, _ = picture.pixels.shape
    top, left = FRAME + (SIDE - height) // 2, FRAME + (SIDE - width) // 2
    box[top : top + height, left : left + width] = picture.pixels


def _box() -> int:
    return SIDE + 2 * FRAME


def _pitch() -> int:
    return _box() + GAP


def _written(canvas: Pixels, texts: Sequence[_Text]) -> Pixels:
    height, width, _ = canvas.shape
    with matplotlib.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        figure.figimage(canvas, origin="upper")
        for x, y, text, size in texts:
            figure.text(x / width, 1 - y / height, text, fontsize=size, color="#333333", va="center")
        agg = FigureCanvasAgg(figure)
        agg.draw()  # type: ignore[no-untyped-call]
    return np.asarray(agg.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]
