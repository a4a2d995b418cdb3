"""The directory that frames are written to: bounded in bytes, the oldest dropped first.

A frame appears under its name in one step (hidden file, rename), so a reader never finds half of one. It is not synced
to the disk: after a power cut a lost frame is a lost frame, a torn one is left out by the reader, and a memory card has
only so many writes.
"""

import re
import time
from collections import deque
from pathlib import Path

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
OWN_NAME = re.compile(r"sofed-\d{20}\.jpg")
"""Files with such a name were written here, and may be deleted here; all others are somebody else's."""


def parse_bytes(text: str) -> int:
    """`200MB` -> 200000000."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Z]*)", text.strip().upper())
    if not found or found[2] not in UNITS or float(found[1]) <= 0:
        raise ValueError(f"limit={text}: expected bytes above 0, like 500KB, 200MB or 2GB")
    return int(float(found[1]) * UNITS[found[2]])


class Spool:
    """Keeps at most `limit` bytes of own frames in `directory`."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory = directory
        self._limit = limit
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        names = sorted(path.name for path in directory.iterdir() if OWN_NAME.fullmatch(path.name))
        self._files = deque((name, (directory / name).stat().st_size) for name in names)
        self._last = int(names[-1][6:26]) if names else 0
        self._hidden = directory / ".sofed-next"
        self.bytes = sum(size for _, size in self._files)

    def put(self, frame: bytes) -> bool:
        """Add a frame, dropping the oldest to make room; False for one that is larger than everything allowed."""
        if len(frame) > self._limit:
            return False
        while self.bytes + len(frame) > self._limit:
            self._drop_oldest()
        self._last = max(self._last + 1, time.time_ns())  # grows even if the clock goes back
        name = f"sofed-{self._last:020}.jpg"
        try:
            self._hidden.write_bytes(frame)
            self._hidden.rename(self._directory / name)
        except OSError:
            self._hidden.unlink(missing_ok=True)
            raise
        self._files.append((name, len(frame)))
        self.bytes += len(frame)
        return True

    def _drop_oldest(self) -> None:
        name, size = self._files.popleft()
        (self._directory / name).unlink(missing_ok=True)
        self.bytes -= size
