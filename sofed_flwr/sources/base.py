"""Where a device's images come from."""

from typing import Protocol

from torch import Tensor


class Source(Protocol):
    """An ordered supply of images, without labels."""

    def __len__(self) -> int:
        """How many images there are before the supply starts over."""

    def read(self, start: int, count: int) -> Tensor:
        """Images start .. start + count - 1 as uint8 (count, 3, H, W); the range lies inside the source."""
