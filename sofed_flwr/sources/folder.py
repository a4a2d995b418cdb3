"""A spool: a directory that something else fills with image files while training runs.

Each image is consumed once, in order of arrival, and nothing is ever deleted here: the cursor says how far the device
has come, and a device that repeats a round reads the same images again. Arrival is a file's change time (ctime), which
no copying program can set, and which a rename or a finished write renews: a file found half-written is left out, and
looked at again when it is complete. No watcher, since a device starts a process per message: a listing is enough.
"""

import logging
import os
import time
from bisect import bisect_right
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from sofed_flwr.contracts import Pixels
from sofed_flwr.decoding import decode, has_image_name
from sofed_flwr.novelty import novelty
from sofed_flwr.sources.base import Cursor, Portion

TICK_SECONDS = 0.02
"""More than a kernel's clock tick: files that share a change time with one already listed may appear for so long."""
SCAN_SHARE = 20
"""A listing that took t is used for at least this many times t, so 100,000 files cost a round at most a twentieth."""
LOOKS_PER_IMAGE = 10
"""A flood of bad files makes a segment short instead of a round long."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Position:
    """How far a spool is consumed, and the digest of the last image taken."""

    spool: str
    time: int = 0
    name: str = ""
    taken: str = ""


class FolderSource:
    """Images of `directory` as `size` x `size` pixels; single-coloured and repeated ones are left out."""

    def __init__(self, directory: Path, size: int) -> None:
        self._directory = directory
        self._spool = str(directory.resolve())
        self._size = size
        self._listed: list[tuple[int, str]] = []
        self._listed_again_at = 0.0

    def waiting(self, cursor: Cursor) -> int:
        """How many files have arrived and are not consumed."""
        return len(self._after(self._position(cursor), wanted=1))

    def read(self, cursor: Cursor, count: int) -> Portion:
        """Decode what arrived, oldest first; whatever is wrong with a file costs that file alone."""
        position = self._position(cursor)
        images: list[Pixels] = []
        unreadable = rejected = 0
        for arrived, name in islice(self._after(position, count), LOOKS_PER_IMAGE * count):
            if len(images) == count:
                break
            position = replace(position, time=arrived, name=name)
            try:
                image = self._decoded(arrived, name)
            except Exception:  # PIL's decoders raise whatever a broken file makes them stumble over
                unreadable += 1
                continue
            if image is None:
                continue
            digest = novelty(image, position.taken)
            if digest is None:
                rejected += 1
            else:
                images.append(image)
                position = replace(position, taken=digest)
        pixels = np.stack(images) if images else np.empty((0, 3, self._size, self._size), np.uint8)
        return Portion(torch.from_numpy(pixels), asdict(position), unreadable, rejected)

    def _decoded(self, arrived: int, name: str) -> Pixels | None:
        """None if the file is gone, or was written to meanwhile: then it will be listed again, as a later one."""
        path = self._directory / name
        try:
            image = decode(path, self._size)
            return image if path.stat().st_ctime_ns == arrived else None
        except FileNotFoundError:
            return None

    def _position(self, cursor: Cursor) -> Position:
        """A cursor of another source or directory is no cursor; one from the future would pass over everything."""
        beginning = Position(self._spool)
        if not isinstance(cursor, dict) or cursor.get("spool") != self._spool:
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
        """Everything up to the last clock tick; what is dated in the future waits until its time comes."""
        until = time.time_ns()
        time.sleep(TICK_SECONDS)
        try:
            with os.scandir(self._directory) as entries:
                arrivals = [arrival for entry in entries if (arrival := _arrival(entry)) and arrival[0] <= until]
        except OSError as error:
            log.warning("the spool cannot be listed (%s): training goes on without new images", error.strerror)
            return []
        return sorted(arrivals)


def _arrival(entry: os.DirEntry[str]) -> tuple[int, str] | None:
    """When an image file came, and its name; whoever fills the spool may have taken it away again."""
    try:
        wanted = has_image_name(entry.name) and entry.is_file()
        return (entry.stat().st_ctime_ns, entry.name) if wanted else None
    except OSError:
        return None
