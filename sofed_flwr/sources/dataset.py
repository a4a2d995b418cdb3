"""A simulated device's images: one client's share of a dataset, in stream order."""

import torch
from torch import Tensor

from sofed_flwr.contracts import Indices, Pixels


class DatasetSource:
    """Reads from the images all simulated clients share; labels ordered them, and stayed behind."""

    def __init__(self, images: Pixels, order: Indices) -> None:
        self._images = images
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def read(self, start: int, count: int) -> Tensor:
        """Copies: the shared images are a read-only memory map."""
        return torch.from_numpy(self._images[self._order[start : start + count]])
