"""The stream X_k: a cursor over a source, handing out segment after segment.

A finite source starts over at its end, so that a simulated device sees its images once per pass, in the same order; the
cursor runs on across rounds and restarts, so no image is skipped or seen twice within a pass.
"""

import torch
from torch import Tensor

from sofed_flwr.sources.base import Source


class Stream:
    """The next image has number `cursor`, counted from the device's first."""

    def __init__(self, source: Source, cursor: int = 0) -> None:
        self._source = source
        self.cursor = cursor

    def __len__(self) -> int:
        return len(self._source)

    def next(self, count: int) -> Tensor:
        """The next `count` images (count, 3, H, W), over the end of the source if need be."""
        parts = []
        while count > 0:
            start = self.cursor % len(self)
            part = self._source.read(start, min(count, len(self) - start))
            parts.append(part)
            self.cursor += len(part)
            count -= len(part)
        return torch.cat(parts)
