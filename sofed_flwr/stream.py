"""The stream X_k: a cursor over a source, handing out segment after segment.

The cursor runs on across rounds and restarts, so no image is skipped or seen twice within a pass.
"""

from sofed_flwr.sources.base import Cursor, Portion, Source


class Stream:
    """Remembers where reading goes on."""

    def __init__(self, source: Source, cursor: Cursor = None) -> None:
        self._source = source
        self.cursor = cursor

    def waiting(self) -> int:
        """How many images one pass from here has."""
        return self._source.waiting(self.cursor)

    def next(self, count: int) -> Portion:
        """The next `count` images, or as many as there are."""
        portion = self._source.read(self.cursor, count)
        self.cursor = portion.cursor
        return portion
