"""The stream X_k: a cursor over a source, handing out segment after segment.

The cursor continues across rounds and restarts, so no image is skipped or seen twice within a pass.
"""

from sofed_flwr.sources.base import Cursor, Portion, Source


class Stream:
    """Remembers where to read next."""

    def __init__(self, source: Source, cursor: Cursor = None) -> None:
        self._source = source
        self.cursor = cursor

    def waiting(self) -> int:
        """Number of images in one pass from here."""
        return self._source.waiting(self.cursor)

    def next(self, count: int) -> Portion:
        """The next `count` images, or as many as there are."""
        portion = self._source.read(self.cursor, count)
        self.cursor = portion.cursor
        return portion
