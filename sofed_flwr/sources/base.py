"""Where a device's images come from.

A source may end and start over, or go on for ever and run dry for a while: it says itself where reading goes on. That
place, the cursor, is its own affair; others keep it with the device's state and hand it back after a restart.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

Cursor = Any
"""Whatever JSON can hold; None is where a source begins, and so is a cursor that another kind of source left."""


@dataclass(frozen=True)
class Portion:
    """What one reading gave: images uint8 (n, 3, H, W), where the next reading begins, and what was left out."""

    images: Tensor
    cursor: Cursor
    unreadable: int = 0
    rejected: int = 0


class Source(Protocol):
    """An ordered supply of images, without labels."""

    def waiting(self, cursor: Cursor) -> int:
        """How many images one pass from here has."""

    def read(self, cursor: Cursor, count: int) -> Portion:
        """At most `count` images; fewer only if there are no more for now."""
