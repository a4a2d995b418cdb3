"""Crash-safe tensors on disk: device state and server checkpoints.

A generation is one file written beside its predecessor (`atomic_files.py`), so kill -9 or a power cut at any moment
leaves the old or the new one whole, and a full disk leaves the old one. A damaged byte costs one part
(`tensor_file.py`); the file's head, which all parts need, has a copy beside it. If nothing of a generation can be used,
its predecessor is read instead. Two generations are kept, so that a device can also repeat a round that the server lost
(`device/participant.py`).
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sofed_flwr.core.errors import DamagedFileError
from sofed_flwr.core.records import State
from sofed_flwr.storage.atomic_files import write_atomically, write_together
from sofed_flwr.storage.plain_files import LARGEST_TENSORS, read_plain_file
from sofed_flwr.storage.tensor_file import ALL_OR_NOTHING, Content, Parts, decode, encode, head_of

GENERATIONS_KEPT = 2
LAST_NUMBER = 10**12 - 1
NAME = re.compile(r"\d{8,12}")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Generation:
    """One committed state; `number` is its parent's plus one, so redoing a round replaces the abandoned attempt."""

    number: int
    tensors: State
    meta: dict[str, Any]


def following(held: Generation | None) -> int:
    """The number of the generation after this one; a device counts from 0, and starts at 0 again after the last."""
    return 0 if held is None or held.number >= LAST_NUMBER else held.number + 1


class Store:
    """The generations in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, generation: Generation, parts: Parts = ALL_OR_NOTHING) -> None:
        """Commit a generation, then delete all but it and its predecessor; after an `OSError` nothing has changed."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for stray in self.directory.glob("*.tmp"):
            stray.unlink(missing_ok=True)
        content = encode(generation.tensors, generation.meta, parts)
        path = self.directory / f"{generation.number:08d}.safetensors"
        write_together({_copy_of(path): head_of(content), path: content})
        self._tidy(generation.number)

    def generations(self) -> Iterator[Generation]:
        """The usable generations, newest first; none at all is a first start. Losses are logged as warnings."""
        for path in sorted(self._files(".safetensors"), key=_number, reverse=True):
            try:
                content = _read(path, _copy_of(path))
            except (DamagedFileError, OSError) as error:
                log.warning("%s; falling back to the generation before it", error)
                continue
            for damage in content.damage:
                log.warning("%s: %s", path, damage)
            yield Generation(_number(path), content.tensors, content.meta)

    def newest(self) -> Generation | None:
        """The last committed state, or None on a first start."""
        return next(self.generations(), None)

    def _tidy(self, newest: int) -> None:
        """A greater number is an abandoned attempt; of the smaller ones, which may have gaps, the last is kept."""
        numbers = sorted(map(_number, self._files(".safetensors")))
        kept = [number for number in numbers if number <= newest][-GENERATIONS_KEPT:]
        for path in [*self._files(".safetensors"), *self._files(".head")]:
            if _number(path) not in kept:
                path.unlink(missing_ok=True)

    def _files(self, suffix: str) -> list[Path]:
        """A directory that is missing or unreadable holds none."""
        try:
            with os.scandir(self.directory) as entries:
                paths = [Path(entry.path) for entry in entries if entry.is_file()]
        except OSError:
            return []
        return [path for path in paths if path.suffix == suffix and NAME.fullmatch(path.stem)]


def _number(path: Path) -> int:
    return int(path.stem)


def write_file(path: Path, tensors: State, meta: Mapping[str, Any]) -> None:
    """Write tensors and JSON-able meta so that `path` is always the old file or the new one, never a mixture."""
    write_atomically(path, encode(tensors, meta))


def read_file(path: Path) -> tuple[State, dict[str, Any]]:
    """Read what `write_file` wrote; raise `DamagedFileError` for anything else."""
    content = _read(path)
    return content.tensors, content.meta


def _read(path: Path, copy: Path | None = None) -> Content:
    try:
        spare = read_plain_file(copy, LARGEST_TENSORS) if copy and copy.exists() else None
        return decode(read_plain_file(path, LARGEST_TENSORS), spare)
    except DamagedFileError as error:
        raise DamagedFileError(f"{path} is damaged ({error})") from error


def _copy_of(path: Path) -> Path:
    return path.with_suffix(".head")
