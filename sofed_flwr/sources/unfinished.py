"""Which files were being read when a process died: a file that crashes the decoder would crash it in every round.

One line per file, in a file beside the device's state. A line is written before a file is decoded and removed
afterwards. So the lines that a new process finds name files that crashed an earlier one, or that were being read when
it was killed, which sometimes costs a good image. Lines are written without fsync, in a few microseconds: they survive
the process, and a power cut is not caused by a file.
"""

import json
import logging
import os
from contextlib import suppress
from pathlib import Path

MOST_LINES = 1000
LONGEST_LINE = 2048
"""A name has 255 bytes at most, which JSON may write as six characters each."""

File = tuple[int, str]
"""When it arrived, and its name."""

log = logging.getLogger(__name__)


class UnfinishedReads:
    """`path` is created when needed; if that fails, nothing is recorded."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._handle: int | None = None
        self._end = self._width = 0
        self._found: frozenset[File] = frozenset()

    def __contains__(self, file: File) -> bool:
        return file in self._found

    def open(self) -> None:
        """Read what earlier processes left; called before a series of reads."""
        if self._path is None or self._handle is not None:
            return
        try:
            lines = _lines(self._path)
            self._found = frozenset(file for line in lines if (file := _parsed(line)))
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            log.debug("nothing can be remembered of files that are being read (%s)", error.strerror)
            return
        self._handle = handle
        self._end = sum(map(len, lines))
        with suppress(OSError):
            os.pwrite(handle, b"".join(lines), 0)
            os.ftruncate(handle, self._end)

    def begin(self, file: File) -> None:
        """This file is decoded next; the line of the one before is overwritten."""
        line = json.dumps(file).encode()
        self._width = max(self._width, len(line))
        if self._handle is not None:
            with suppress(OSError):
                os.pwrite(self._handle, line.ljust(self._width) + b"\n", self._end)

    def close(self) -> None:
        """All reads have finished."""
        if self._handle is not None:
            with suppress(OSError):
                os.ftruncate(self._handle, self._end)
            os.close(self._handle)
            self._handle = None


def _lines(path: Path) -> list[bytes]:
    """The valid lines, at most MOST_LINES."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        found = file.read(MOST_LINES * LONGEST_LINE).splitlines()
        return [line.rstrip() + b"\n" for line in found if _parsed(line)][-MOST_LINES:]
    return []


def _parsed(line: bytes) -> File | None:
    """None for an invalid line."""
    try:
        arrived, name = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return None
    return (arrived, name) if type(arrived) is int and type(name) is str else None
