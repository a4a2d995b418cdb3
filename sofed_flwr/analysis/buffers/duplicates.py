"""Which images of a buffer are nearly the same: a buffer full of one scene teaches little.

Two images are near-duplicates if they differ by at most 5 % of the range of colours, as a root mean square, once both
are reduced to 8 x 8 pixels. Whatever is near a member of a group belongs to the group, as the frames of a slow pan do.

Measured on 6,000 images of CIFAR-10: of 18 million pairs five are that near. After JPEG at quality 50, noise of 10 grey
levels or 5 % more light every image is that near to what it was, moved by one pixel 74 % are, by two 15 %.
"""

import torch
from torch import Tensor
from torch.nn import functional

from sofed_flwr.views.pixels import unit_range

SIDE = 8
NEAR = 0.05
BATCH = 512
"""Images that are compared with all others at once."""


def near_duplicates(images: Tensor) -> list[list[int]]:
    """Images (n, 3, H, W) -> the places of those that have a near-duplicate, by group, in order of the first."""
    if not len(images):
        return []
    reduced = torch.cat([_reduced(batch) for batch in torch.split(images, BATCH)])
    alone = torch.cat([_near(batch, reduced).sum(dim=1) == 1 for batch in torch.split(reduced, BATCH)])
    left, groups = ~alone, []
    while left.any():
        group, reached = [], left.nonzero()[0]
        while len(reached):
            group += reached.tolist()
            left[reached] = False
            reached = (_near(reduced[reached], reduced).any(dim=0) & left).nonzero()[:, 0]
        groups.append(sorted(group))
    return groups


def _reduced(images: Tensor) -> Tensor:
    return functional.adaptive_avg_pool2d(unit_range(images), SIDE).flatten(1)


def _near(some: Tensor, all_of_them: Tensor) -> Tensor:
    """Mask (some, all)."""
    distances: Tensor = torch.cdist(some, all_of_them) / some.shape[1] ** 0.5
    return distances <= NEAR
