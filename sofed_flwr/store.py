"""Crash-safe tensors on disk: device state and server checkpoints.

A generation is one file written beside its predecessor (temporary file, fsync, rename, directory fsync), so kill -9 or
a power cut at any moment leaves the old or the new one whole, and a full disk leaves the old one. Bit rot costs the
part it hit (`tensor_file.py`); a copy of the file's head, on which all parts hang, lies beside it. Only for a
generation of which nothing can be used, torn or worth nothing in parts, its predecessor steps in. Two generations are
kept, which is also what lets a device repeat the round the server lost (see `device.py`).
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sofed_flwr.contracts import State
from sofed_flwr.tensor_file import Content, DamagedFileError, Parts, decode, encode, head_of

GENERATIONS_KEPT = 2
ALL_OR_NOTHING = Parts()

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Generation:
    """One committed state; `number` is its parent's plus one, so redoing a round replaces the abandoned attempt."""

    number: int
    tensors: State
    meta: dict[str, Any]


class Store:
    """The generations in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, generation: Generation, parts: Parts = ALL_OR_NOTHING) -> None:
        """Commit a generation, then forget all but it and its predecessor; an `OSError` leaves things as they were."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for stray in self.directory.glob("*.tmp"):
            stray.unlink(missing_ok=True)
        content = encode(generation.tensors, generation.meta, parts)
        path = self.directory / f"{generation.number:08d}.safetensors"
        _replace({_copy_of(path): head_of(content), path: content})
        self._tidy(generation.number)

    def generations(self) -> Iterator[Generation]:
        """The usable generations, newest first; none at all is a first start, and whatever is lost costs a warning."""
        for path in sorted(self._files(".safetensors"), reverse=True):
            try:
                content = _read(path, _copy_of(path))
            except DamagedFileError as error:
                log.warning("%s; falling back to the generation before it", error)
                continue
            for damage in content.damage:
                log.warning("%s: %s", path, damage)
            yield Generation(int(path.stem), content.tensors, content.meta)

    def newest(self) -> Generation | None:
        """The last committed state, or None on a first start."""
        return next(self.generations(), None)

    def _tidy(self, newest: int) -> None:
        """A greater number is an abandoned attempt; of the smaller ones, which may have gaps, the last is kept."""
        numbers = sorted(int(path.stem) for path in self._files(".safetensors"))
        kept = [number for number in numbers if number <= newest][-GENERATIONS_KEPT:]
        for path in [*self._files(".safetensors"), *self._files(".head")]:
            if int(path.stem) not in kept:
                path.unlink(missing_ok=True)

    def _files(self, suffix: str) -> list[Path]:
        return [path for path in self.directory.glob(f"*{suffix}") if path.stem.isdigit()]


def write_file(path: Path, tensors: State, meta: Mapping[str, Any]) -> None:
    """Write tensors and JSON-able meta so that `path` is always the old file or the new one, never a mixture."""
    write_atomically(path, encode(tensors, meta, ALL_OR_NOTHING))


def read_file(path: Path) -> tuple[State, dict[str, Any]]:
    """Read what `write_file` wrote; raise `DamagedFileError` for anything else."""
    content = _read(path)
    return content.tensors, content.meta


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file's content in one step that survives a power cut."""
    _replace({path: content})


def _read(path: Path, copy: Path | None = None) -> Content:
    try:
        return decode(path.read_bytes(), copy.read_bytes() if copy and copy.exists() else None)
    except DamagedFileError as error:
        raise DamagedFileError(f"{path} is damaged ({error})") from error


def _copy_of(path: Path) -> Path:
    return path.with_suffix(".head")


def _replace(contents: Mapping[Path, bytes]) -> None:
    """Replace files of one directory in the given order, after all of them are on disk: a full disk replaces none."""
    temporaries = {path: path.with_name(f"{path.name}.tmp") for path in contents}
    try:
        for path, content in contents.items():
            _write_through(temporaries[path], content)
        for path, temporary in temporaries.items():
            temporary.replace(path)
    except OSError:
        for temporary in temporaries.values():
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        raise
    for directory in {path.parent for path in contents}:
        _sync(directory)


def _write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
