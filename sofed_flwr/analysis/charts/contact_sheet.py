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
BOX = SIDE + 2 * FRAME
PITCH = BOX + GAP
COLUMNS, FEWEST_COLUMNS = 16, 6
"""Pictures side by side, at most; and the room for so many that a heading needs."""
DPI = 100


class Picture(NamedTuple):
    """Pixels (H, W, 3), no side longer than SIDE; pictures with the same `mark` have frames of the same colour."""

    pixels: Pixels
    caption: str
    mark: int | None = None


def draw(heading: str, pictures: Sequence[Picture]) -> Pixels:
    """The sheet of all pictures, (H, W, 3)."""
    columns = min(COLUMNS, len(pictures))
    rows = math.ceil(len(pictures) / columns)
    width = max(columns, FEWEST_COLUMNS) * PITCH + GAP
    canvas = np.full((HEADING + rows * (PITCH + CAPTION), width, 3), 255, np.uint8)
    texts = [(GAP + FRAME, HEADING / 2, heading, 11.0)]
    for number, picture in enumerate(pictures):
        row, column = divmod(number, columns)
        top, left = HEADING + row * (PITCH + CAPTION), GAP + column * PITCH
        _place(picture, canvas[top : top + BOX, left : left + BOX])
        texts.append((left + FRAME, top + BOX + CAPTION / 2, picture.caption, 7.5))
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


def _written(canvas: Pixels, texts: Sequence[tuple[float, float, str, float]]) -> Pixels:
    """With texts of a size at x and y."""
    height, width, _ = canvas.shape
    with matplotlib.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        figure.figimage(canvas, origin="upper")
        for x, y, text, size in texts:
            figure.text(x / width, 1 - y / height, text, fontsize=size, color="#333333", va="center")
        agg = FigureCanvasAgg(figure)
        agg.draw()  # type: ignore[no-untyped-call]
    return np.asarray(agg.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]
