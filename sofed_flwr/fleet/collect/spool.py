"""The directory that frames are written to: bounded in bytes, the oldest dropped first.

A frame appears under its name in one step (hidden file, rename), so a reader never finds half of one. It is not synced
to the disk: after a power cut a frame may be lost or torn, which the reader leaves out, and a memory card wears out
with every write.
"""

import math
import os
import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
OWN_NAME = re.compile(r"sofed-[0-9]{20}\.jpg")
"""Files with such a name were written here and may be deleted here; no other file is touched."""
END_OF_TIME = 2**63
"""In nanoseconds, the year 2262."""


def parse_bytes(text: str) -> int:
    """`200MB` -> 200000000."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Z]*)", text.strip().upper())
    value = float(found[1]) * UNITS.get(found[2], 0) if found else 0.0
    if not 1 <= value < math.inf:
        raise ValueError(f"limit={text}: expected bytes above 0, like 500KB, 200MB or 2GB")
    return int(value)


class Spool:
    """Keeps at most `limit` bytes of own frames in `directory`."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory = directory
        self._limit = limit
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._files = deque(sorted(_own_files(directory), key=_age))
        self._last = max((_number(name) for name, _ in self._files if _number(name) < END_OF_TIME), default=0)
        self._hidden = directory / ".sofed-next"
        self.bytes = sum(size for _, size in self._files)

    def put(self, frame: bytes) -> bool:
        """Add a frame, dropping the oldest to make room; False for one that is larger than the limit.

        After an `OSError` the count of files is still right.
        """
        if len(frame) > self._limit:
            return False
        while self.bytes + len(frame) > self._limit:
            self._drop_oldest()
        self._last = max(self._last + 1, time.time_ns())  # grows even if the clock goes back
        name = f"sofed-{self._last:020}.jpg"
        self._hidden.unlink(missing_ok=True)
        try:
            self._write(frame)
            self._hidden.rename(self._directory / name)
        except OSError:
            self._hidden.unlink(missing_ok=True)
            raise
        self._files.append((name, len(frame)))
        self.bytes += len(frame)
        return True

    def _write(self, frame: bytes) -> None:
        """To a new file: an existing one, which may be a link, is not written to."""
        handle = os.open(self._hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with os.fdopen(handle, "wb") as file:
            file.write(frame)

    def _drop_oldest(self) -> None:
        name, size = self._files[0]
        path = self._directory / name
        if not path.is_dir():  # it was replaced, and is not ours
            path.unlink(missing_ok=True)
        self._files.popleft()
        self.bytes -= size


def _own_files(directory: Path) -> Iterator[tuple[str, int]]:
    """Names and sizes; anything but a plain file is left out, and so is a file that disappears meanwhile."""
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if OWN_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    yield entry.name, entry.stat(follow_symlinks=False).st_size


def _number(name: str) -> int:
    return int(name[6:26])


def _age(file: tuple[str, int]) -> tuple[bool, int]:
    """Oldest first; a number beyond any clock is treated as oldest."""
    number = _number(file[0])
    return number < END_OF_TIME, number
