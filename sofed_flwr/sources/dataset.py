"""A simulated device's images: one client's share of a dataset, in stream order.

It starts over at its end, so a simulated device sees each of its images once per pass, in the same order.
"""

import numpy as np
import torch

from sofed_flwr.contracts import Indices, Pixels
from sofed_flwr.sources.base import Cursor, Portion


class DatasetSource:
    """Reads from the images all simulated clients share; labels ordered them, and stayed behind.

    The cursor is the number of images read so far.
    """

    def __init__(self, images: Pixels, order: Indices) -> None:
        self._images = images
        self._order = order

    def waiting(self, cursor: Cursor) -> int:
        """All of them: a pass may begin anywhere."""
        return len(self._order)

    def read(self, cursor: Cursor, count: int) -> Portion:
        """Copies: the shared images are a read-only memory map."""
        done = cursor if isinstance(cursor, int) else 0
        chosen = self._order[np.arange(done, done + count) % len(self._order)]
        return Portion(torch.from_numpy(self._images[chosen]), done + count)
