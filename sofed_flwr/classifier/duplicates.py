"""Images that stand on both sides of a split: a classifier has seen their answer, so they tell nothing of its worth.

Identical ones have the same pixels at the size the encoder sees. Similar ones (the same photo saved again, cropped by a
pixel, the next frame of a video) have thumbnails of 8 x 8 that correlate by 0.975 or more, once the mean image is
subtracted: what all images share, as X-rays do, makes no two of them duplicates. Between 4,000 test and 15,000 training
images of CIFAR-10 that finds 14 pairs, each of one thing in one picture; at 0.96 it would be 34, a quarter of them of
different things. Of 500 of them saved again as JPEG of quality 50, 499 are found.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from sofed_flwr.classifier.labels import Watch
from sofed_flwr.core.records import Labels, Pixels

THUMBNAIL = 8
SIMILAR = 0.975
CHUNK = 512
"""Images that are compared at a time with all others: 100 MB for 50,000."""


class Pair(NamedTuple):
    """An image and the one it is most like, of an earlier group."""

    image: int
    earlier: int
    identical: bool


def across(images: Pixels, groups: Labels, watch: Watch) -> list[Pair]:
    """Images (n, 3, H, W) of one group that are also in an earlier one, groups (n,) being numbers."""
    thumbnails = _thumbnails(images)
    same = {image: Pair(image, earlier, True) for image, earlier in _identical(images, groups)}
    found = dict(same)
    work = []
    for group in np.unique(groups)[1:]:
        later, before = (np.flatnonzero(mask) for mask in (groups == group, groups < group))
        work += [(later[start : start + CHUNK], before) for start in range(0, len(later), CHUNK)]
    for rows, before in watch(work, "looking for duplicates"):
        likeness, nearest = (thumbnails[rows] @ thumbnails[before].T).max(dim=1)
        for row, value, place in zip(rows.tolist(), likeness.tolist(), nearest.tolist(), strict=True):
            if value >= SIMILAR and row not in same:
                found[row] = Pair(row, int(before[place]), False)
    return [found[image] for image in sorted(found)]


def _identical(images: Pixels, groups: Labels) -> list[tuple[int, int]]:
    first: dict[bytes, int] = {}
    pairs = []
    for image in np.argsort(groups, kind="stable").tolist():
        earlier = first.setdefault(images[image].tobytes(), image)
        if groups[earlier] < groups[image]:
            pairs.append((image, earlier))
    return pairs


def _thumbnails(images: Pixels) -> Tensor:
    """(n, 192), of mean 0 and length 1, so that a product is a correlation; a picture of one colour is 0."""
    parts = [images[start : start + CHUNK] for start in range(0, len(images), CHUNK)]
    small = torch.cat(
        [functional.adaptive_avg_pool2d(torch.from_numpy(np.array(part)).float(), THUMBNAIL) for part in parts]
    )
    values = (small - small.mean(dim=0)).flatten(1)
    return functional.normalize(values - values.mean(dim=1, keepdim=True), eps=1.0)
