"""`spool:DIRECTORY`, a directory that another program fills with image files while training runs.

Each image is read once, in order of arrival, and nothing is deleted here: the cursor says how far the device has read,
and a device that repeats a round reads the same images again. Arrival is a file's change time (ctime), which no copying
program can set, and which a rename or a finished write renews: an incomplete file is left out, and read when it is
complete. The directory is listed, not watched, since a device starts a process per message. A file that crashed the
process reading it is left out by the next one (`unfinished.py`).
"""

import logging
import os
import time
from bisect import bisect_right
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sofed_flwr.core.errors import DeviceError
from sofed_flwr.core.records import Pixels
from sofed_flwr.images.decoding import MAX_PIXELS, decode, has_image_name, why_not_read
from sofed_flwr.images.frame_filter import digest_if_new
from sofed_flwr.sources.base import Cursor, Portion, Setting
from sofed_flwr.sources.unfinished import UnfinishedReads

FORM = "spool:DIRECTORY"
TICK_SECONDS = 0.02
"""More than a kernel's clock tick: within it, files with the same change time as a listed one may still appear."""
SCAN_SHARE = 20
"""A listing that took t is used for at least this many times t, so 100,000 files cost a round at most a twentieth."""
LOOKS_PER_IMAGE = 10
"""With many bad files a segment becomes short instead of a round long."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Position:
    """How far a spool has been read, and the digest of the last image taken."""

    spool: str
    time: int = 0
    name: str = ""
    taken: str = ""


class FolderSource:
    """Images of `directory` as `size` x `size` pixels; single-coloured and repeated ones are left out.

    `unfinished` is the file that records what a process was reading when it died.
    """

    def __init__(
        self, directory: Path, size: int, max_pixels: int = MAX_PIXELS, unfinished: Path | None = None
    ) -> None:
        self._directory = directory
        self._spool = str(directory.resolve())
        self._size = size
        self._max_pixels = max_pixels
        self._unfinished = UnfinishedReads(unfinished)
        self._listed: list[tuple[int, str]] = []
        self._listed_again_at = 0.0
        self._said: set[str] = set()

    def waiting(self, cursor: Cursor) -> int:
        """Number of files not read yet."""
        return len(self._after(self._position(cursor), wanted=1))

    def read(self, cursor: Cursor, count: int) -> Portion:
        """Decode new files, oldest first; a bad file costs that file only."""
        self._unfinished.open()
        try:
            return self._read(self._position(cursor), count)
        finally:
            self._unfinished.close()

    def _read(self, position: Position, count: int) -> Portion:
        images: list[Pixels] = []
        unreadable = rejected = 0
        for arrived, name in islice(self._after(position, count), LOOKS_PER_IMAGE * count):
            if len(images) == count:
                break
            position = replace(position, time=arrived, name=name)
            try:
                image = self._decoded(arrived, name)
            except Exception:  # PIL's decoders may raise anything on a broken file
                unreadable += 1
                continue
            if image is None:
                continue
            digest = digest_if_new(image, position.taken)
            if digest is None:
                rejected += 1
            else:
                images.append(image)
                position = replace(position, taken=digest)
        pixels = np.stack(images) if images else np.empty((0, 3, self._size, self._size), np.uint8)
        return Portion(torch.from_numpy(pixels), asdict(position), unreadable, rejected)

    def _decoded(self, arrived: int, name: str) -> Pixels | None:
        """None if the file is gone or was changed meanwhile: then it will be listed again, as a later one."""
        if (arrived, name) in self._unfinished:
            log.warning("a process died while it read %r from the spool: the file is left out", name)
            raise ValueError("a process died while reading it")
        if (why := why_not_read(name)) is not None:
            if why not in self._said:
                log.warning("in the spool: %s", why)
            self._said.add(why)
            raise ValueError(why)
        self._unfinished.begin((arrived, name))
        path = self._directory / name
        try:
            image = decode(path, self._size, self._max_pixels)
            return image if path.stat().st_ctime_ns == arrived else None
        except FileNotFoundError:
            return None

    def _position(self, cursor: Cursor) -> Position:
        """A cursor of another source or directory is ignored; one from the future would skip all images."""
        beginning = Position(self._spool)
        if not isinstance(cursor, dict) or cursor.get("spool") != self._spool:
            return beginning
        if not _is_position(cursor):
            log.warning("the saved position in the spool is not valid: it is read from its beginning")
            return beginning
        now = time.time_ns()
        if cursor["time"] <= now:
            return Position(**cursor)
        log.warning("the clock went back by %.0f s: images in the spool count as seen", (cursor["time"] - now) / 1e9)
        return replace(beginning, time=now, taken=cursor["taken"])

    def _after(self, position: Position, wanted: int) -> list[tuple[int, str]]:
        """Arrivals after a position, in order; the directory is listed again if too few of them are known."""
        known = self._later(position)
        if len(known) >= wanted or time.monotonic() < self._listed_again_at:
            return known
        began = time.monotonic()
        self._listed = self._listing()
        self._listed_again_at = time.monotonic() + SCAN_SHARE * (time.monotonic() - began)
        return self._later(position)

    def _later(self, position: Position) -> list[tuple[int, str]]:
        return self._listed[bisect_right(self._listed, (position.time, position.name)) :]

    def _listing(self) -> list[tuple[int, str]]:
        """Everything up to the last clock tick; a file dated in the future is left for later."""
        until = time.time_ns()
        time.sleep(TICK_SECONDS)
        try:
            with os.scandir(self._directory) as entries:
                arrivals = [arrival for entry in entries if (arrival := _arrival(entry)) and arrival[0] <= until]
        except OSError as error:
            log.warning("the spool cannot be listed (%s): training goes on without new images", error.strerror)
            return []
        return sorted(arrivals)


def _is_position(cursor: dict[str, Any]) -> bool:
    kinds = {name: type(value) for name, value in cursor.items()}
    return kinds == {"spool": str, "time": int, "name": str, "taken": str} and 0 <= cursor["time"] < 2**63


def _arrival(entry: os.DirEntry[str]) -> tuple[int, str] | None:
    """When an image file arrived, in a format that we read or not, and its name; it may be gone already."""
    try:
        wanted = (has_image_name(entry.name) or why_not_read(entry.name) is not None) and entry.is_file()
        return (entry.stat().st_ctime_ns, entry.name) if wanted else None
    except OSError:
        return None


def check_source(text: str) -> None:
    """The directory must exist; its path is written to this device's own log only."""
    if not text or not Path(text).expanduser().is_dir():
        log.error("node config source: %r is not a directory", text)
        raise DeviceError("node config source is not a directory on this device; its log says which")


def open_source(text: str, setting: Setting) -> FolderSource:
    """What has arrived in the directory."""
    directory = Path(text).expanduser()
    return FolderSource(directory, setting.image_size, setting.max_pixels, setting.home / "unfinished_reads")
