"""Where a device's images come from.

A source may start again at its end, or be endless and sometimes have nothing new. Its cursor says where reading
continues; only the source understands it, the device stores it and passes it back after a restart.

A kind of source is one module of this package with the members of `Scheme`; the module's name is written before the
colon in node config (`schemes.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from sofed_flwr.core.records import Indices, Pixels

Cursor = Any
"""Anything that JSON can hold; None, or the cursor of another kind of source, is the beginning."""


@dataclass(frozen=True)
class Portion:
    """Result of one read: images uint8 (n, 3, H, W), the next cursor, and counts of images left out."""

    images: Tensor
    cursor: Cursor
    unreadable: int = 0
    rejected: int = 0


class Source(Protocol):
    """An ordered supply of images, without labels."""

    def waiting(self, cursor: Cursor) -> int:
        """Number of images in one pass from here."""

    def read(self, cursor: Cursor, count: int) -> Portion:
        """At most `count` images; fewer only if no more are available now."""


@dataclass(frozen=True)
class Setting:
    """Settings of a source: images of `image_size`, decoded from at most `max_pixels`.

    `home` is where the device keeps its state. `share` opens the dataset, which may have to be downloaded first: all
    training images, and the indices of this device's in stream order.
    """

    image_size: int
    max_pixels: int
    home: Path
    share: Callable[[], tuple[Pixels, Indices]]


class Scheme(Protocol):
    """A module of this package that is a kind of source.

    `text` is what follows the colon in node config. A `DeviceError` is sent to the server, so it contains no path.
    """

    FORM: str
    """What an owner writes, such as camera:INDEX; without a colon nothing needs to follow the name."""

    def check_source(self, text: str) -> None:
        """Raise a `DeviceError` if this device has no such source; called for every message."""

    def open_source(self, text: str, setting: Setting) -> Source:
        """The source; called once per round, after `check_source`."""
