"""`dataset`, a simulated device's images: one client's share of a dataset, in stream order.

It starts over at its end, so a simulated device sees each of its images once per pass, in the same order.
"""

import numpy as np
import torch

from sofed_flwr.core.errors import DeviceError
from sofed_flwr.core.records import Indices, Pixels
from sofed_flwr.sources.base import Cursor, Portion, Setting

FORM = "dataset"
MOST_IMAGES = 2**53


class DatasetSource:
    """Reads from the images that all simulated clients share, without labels.

    The cursor is the number of images read so far; anything else is read as 0.
    """

    def __init__(self, images: Pixels, order: Indices) -> None:
        self._images = images
        self._order = order

    def waiting(self, cursor: Cursor) -> int:
        """All of them: a pass may begin anywhere."""
        return len(self._order)

    def read(self, cursor: Cursor, count: int) -> Portion:
        """Copies: the shared images are a read-only memory map."""
        done = cursor if isinstance(cursor, int) and 0 <= cursor < MOST_IMAGES else 0
        chosen = self._order[np.arange(done, done + count) % len(self._order)]
        return Portion(torch.from_numpy(self._images[chosen]), done + count)


def check_source(text: str) -> None:
    """The run says which dataset it is."""
    if text:
        raise DeviceError("node config source: nothing may follow dataset, the run decides which one it is")


def open_source(text: str, setting: Setting) -> DatasetSource:
    """This device's share."""
    return DatasetSource(*setting.share())
