"""Crash-safe tensors on disk: device state and server checkpoints.

A generation is one safetensors file written beside its predecessor (temporary file, fsync, rename, directory fsync), so
kill -9 or a power cut at any moment leaves the old or the new one whole. Its SHA-256 stands in the file's own header: a
torn or rotten file is noticed and its predecessor used. Two generations are kept, which is also what lets a device
repeat the round the server lost (see `device.py`).
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch

from sofed_flwr.contracts import State

FORMAT = "sofed/1"
GENERATIONS_KEPT = 2

log = logging.getLogger(__name__)


class DamagedFileError(ValueError):
    """The file is not what was written: torn, rotten or foreign."""


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

    def save(self, generation: Generation) -> None:
        """Commit a generation, then forget all but it and its parent."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for stray in self.directory.glob("*.tmp"):
            stray.unlink(missing_ok=True)
        write_file(self._path(generation.number), generation.tensors, generation.meta)
        for number in self._numbers():
            if not generation.number - GENERATIONS_KEPT < number <= generation.number:
                self._path(number).unlink(missing_ok=True)

    def generations(self) -> Iterator[Generation]:
        """The intact generations, newest first; none at all is a first start, a damaged one costs a warning."""
        for number in sorted(self._numbers(), reverse=True):
            try:
                tensors, meta = read_file(self._path(number))
            except DamagedFileError as damage:
                log.warning("%s; falling back to the generation before it", damage)
                continue
            yield Generation(number, tensors, meta)

    def newest(self) -> Generation | None:
        """The last committed state, or None on a first start."""
        return next(self.generations(), None)

    def _numbers(self) -> list[int]:
        return [int(path.stem) for path in self.directory.glob("*.safetensors") if path.stem.isdigit()]

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:08d}.safetensors"


def write_file(path: Path, tensors: State, meta: Mapping[str, Any]) -> None:
    """Write tensors and JSON-able meta so that `path` is always the old file or the new one, never a mixture."""
    tensors = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(meta, sort_keys=True)
    # One entry, because safetensors writes several in random order and equal content shall give equal files.
    header = {FORMAT: f"{_digest(tensors, text)} {text}"}
    write_atomically(path, safetensors.torch.save(tensors, header))


def read_file(path: Path) -> tuple[State, dict[str, Any]]:
    """Read what `write_file` wrote; raise `DamagedFileError` for anything else."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (safetensors.SafetensorError, UnicodeDecodeError) as error:
        raise DamagedFileError(f"{path} is damaged ({error})") from error
    if FORMAT not in header:
        raise DamagedFileError(f"{path} is not a file of format {FORMAT}")
    digest, _, text = header[FORMAT].partition(" ")
    if digest != _digest(tensors, text):
        raise DamagedFileError(f"{path} is damaged (its checksum does not match)")
    meta: dict[str, Any] = json.loads(text)
    return tensors, meta


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file's content in one step that survives a power cut."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _digest(tensors: State, meta: str) -> str:
    digest = hashlib.sha256(meta.encode())
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name].numpy())
        digest.update(f"{name}|{array.dtype}|{array.shape}|".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
