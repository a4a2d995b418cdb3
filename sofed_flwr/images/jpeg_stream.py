"""A stream of bytes -> the JPEG images in it (MJPEG is a sequence of JPEGs).

Images are followed from marker to marker (ITU-T T.81, annex B): a search for the end marker alone would cut an image
at the end of the thumbnail in its header.
"""

import re

START = b"\xff\xd8\xff"
BEGIN, END = b"\xff\xd8", b"\xff\xd9"
MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
"""But for those that stand within coded image data."""
LONGEST_IMAGE = 2**25
"""32 MB, more than any camera's frame; anything longer is dropped."""


class Jpegs:
    """Cuts images out of a stream that arrives in pieces."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._place = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The images that are complete with this piece; bytes between images are skipped."""
        self._rest += piece
        images = []
        while (end := self._end()) is not None:
            images.append(bytes(self._rest[:end]))
            self._drop(end)
        return images

    def _end(self) -> int | None:
        """Where the first image ends, or None; `_place` is where reading continues with the next piece."""
        while self._begins():
            if (marker := MARKER.search(self._rest, self._place)) is None:
                self._place = max(self._place, len(self._rest) - self._rest.endswith(b"\xff"))
                return None
            self._place = marker.start()
            if marker[0] == END:
                return marker.end()
            if marker[0] == BEGIN:  # the image before was cut short
                self._drop(self._place)
            elif not self._skip():
                return None
        return None

    def _begins(self) -> bool:
        """Drop everything before an image, and an image that is too long."""
        if self._place and len(self._rest) > LONGEST_IMAGE:
            self._drop(len(START))
        if self._place:
            return True
        start = self._rest.find(START)
        self._drop(start if start >= 0 else max(0, len(self._rest) - len(START) + 1))
        self._place = 2 if start >= 0 else 0
        return start >= 0

    def _drop(self, count: int) -> None:
        del self._rest[:count]
        self._place = 0

    def _skip(self) -> bool:
        """Skip a marker and its parameters; False if they have not arrived yet."""
        length = int.from_bytes(self._rest[self._place + 2 : self._place + 4], "big")
        behind = self._place + 2 + length
        if len(self._rest) < self._place + 4 or len(self._rest) < behind:
            return False
        self._place = behind
        return True
