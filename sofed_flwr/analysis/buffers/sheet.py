"""A buffer as a contact sheet: highest scores first, near-duplicates framed in one colour."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sofed_flwr.analysis.buffers.held import Held
from sofed_flwr.analysis.charts.contact_sheet import SIDE, Picture, draw
from sofed_flwr.core.records import Pixels
from sofed_flwr.launch.watched import watched
from sofed_flwr.views.pixels import unit_range

MOST_IMAGES = 400
"""Of one device."""


class Sheet(NamedTuple):
    """The drawn images of one device, (H, W, 3)."""

    device: int
    pixels: Pixels


def sheets(buffers: Sequence[Held]) -> list[Sheet]:
    """Of the devices that hold any images."""
    return [Sheet(held.device, _drawn(held)) for held in watched(buffers, "drawing") if len(held)]


def order(held: Held) -> list[int]:
    """Places of the images: by score, those without one last, among equals the youngest first."""
    scores = held.now.scores.nan_to_num(nan=-torch.inf)
    return sorted(range(len(held)), key=lambda place: (-float(scores[place]), int(held.now.ages[place])))


def _drawn(held: Held) -> Pixels:
    places = order(held)[:MOST_IMAGES]
    group_of = {place: number for number, group in enumerate(held.duplicates, start=1) for place in group}
    small = _thumbnails(held.now.images[torch.tensor(places)])
    pictures = [
        Picture(pixels, _caption(held, place, group_of.get(place)), group_of.get(place))
        for pixels, place in zip(small, places, strict=True)
    ]
    count = f"the first {len(places)} of {len(held)} images" if len(places) < len(held) else f"{len(held)} images"
    below = "score · age in iterations" if len(held.scores) else "age in iterations"
    marks = " · ≈ near-duplicates" if group_of else ""
    return draw(f"device {held.device}, round {held.now.round}, {count}: {below}{marks}", pictures)


def _caption(held: Held, place: int, group: int | None) -> str:
    score, age = float(held.now.scores[place]), int(held.now.ages[place])
    known = [f"{score:.3f}"] if score == score else []
    return " · ".join([*known, str(age), *([f"≈{group}"] if group else [])])


def _thumbnails(images: Tensor) -> list[Pixels]:
    """Larger by a whole factor, so that pixels stay pixels, or smaller by averages; (n, h, w, 3)."""
    height, width = images.shape[-2:]
    longest = max(height, width)
    times, over = (SIDE // longest, 1) if longest <= SIDE else (SIDE, longest)
    size = (max(1, height * times // over), max(1, width * times // over))
    parts = [functional.adaptive_avg_pool2d(unit_range(part), size) for part in torch.split(images, 64)]
    return list(torch.cat(parts).mul_(255).round_().to(torch.uint8).permute(0, 2, 3, 1).numpy())
