"""Named tensors and JSON-able meta as a safetensors file in which damaged parts can be found.

The head of a safetensors file (its length, then JSON) describes the data behind it. Ours also carries a digest of
itself and one for every part that can be lost alone, so that one damaged byte costs one part: an entry of a
table, a group of optional tensors, or the whole file if its tensors are only of use together. Without its head a file
cannot be read, so `generations.py` keeps a copy of it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import safetensors
import safetensors.torch
import torch

from sofed_flwr.core.errors import DamagedFileError
from sofed_flwr.core.records import State

OWN = "sofed/"
FORMAT = f"{OWN}2"
BLANK = "0" * 32
"""Placeholder of the head's digest while it is computed."""


@dataclass(frozen=True)
class Parts:
    """What a file may lose and still be usable; tensors under neither prefix are all needed.

    Tensors under `rows` are the columns of one table, entry i being the i-th row of each: a damaged entry is left out.
    Tensors under one prefix of `spare` are optional as a group: a damaged byte leaves out all of them.
    """

    rows: str | None = None
    spare: tuple[str, ...] = ()

    def split(self, tensors: State) -> tuple[State, State, State]:
        """The table, the spare and the needed tensors."""
        rows = {name: tensor for name, tensor in tensors.items() if self.rows and name.startswith(self.rows)}
        spare = {name: tensor for name, tensor in tensors.items() if name.startswith(self.spare)}
        return rows, spare, {name: tensors[name] for name in tensors.keys() - rows.keys() - spare.keys()}


ALL_OR_NOTHING = Parts()


@dataclass(frozen=True)
class Content:
    """Content of a file; `damage` describes what is lost."""

    tensors: State
    meta: dict[str, Any]
    damage: list[str] = field(default_factory=list)


def encode(tensors: State, meta: Mapping[str, Any], parts: Parts = ALL_OR_NOTHING) -> bytes:
    """The bytes of the file; equal content gives equal bytes."""
    stated = {"meta": meta, "rows": parts.rows, "spare": parts.spare or None, "digests": _digests(tensors, parts)}
    # one entry: safetensors writes several in random order, and equal content shall give equal files
    content = to_bytes(tensors, {FORMAT: BLANK + json.dumps(stated, sort_keys=True)})
    head = head_of(content)
    return b"".join([head.replace(BLANK.encode(), _digest([head]).encode(), 1), memoryview(content)[len(head) :]])


def decode(content: bytes, copy: bytes | None = None) -> Content:
    """The undamaged content, with the help of a copy of the head; `DamagedFileError` if there is none."""
    damage = []
    stated = _read_head(head_of(content))
    if stated is None:
        stated = _read_head(copy or b"")
        if copy is None or stated is None:
            raise DamagedFileError(f"its head is damaged, or it is not a file of format {FORMAT}")
        content = copy + content[len(copy) :]
        damage.append("its head is damaged and was read from the copy")
    elif copy is not None and copy != head_of(content):
        damage.append("the copy of its head differs from it and was not needed")
    try:
        meta, parts = dict(stated["meta"]), Parts(stated["rows"], _prefixes(stated["spare"]))
        tensors, lost = _undamaged(from_bytes(content), parts, stated["digests"])
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, DamagedFileError):
            raise
        raise DamagedFileError(f"its head describes what it cannot hold ({error})") from error
    return Content(tensors, meta, damage + lost)


def to_bytes(tensors: State, metadata: dict[str, str] | None = None) -> bytes:
    """Plain safetensors, without digests."""
    return safetensors.torch.save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, metadata)


def from_bytes(content: bytes) -> State:
    """The tensors of plain safetensors, or a `DamagedFileError`; in order of name, safetensors' own order is random."""
    try:
        return dict(sorted(safetensors.torch.load(content).items()))
    except (safetensors.SafetensorError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise DamagedFileError(str(error)) from error


def head_of(content: bytes) -> bytes:
    """The first bytes of a safetensors file, up to the tensors' data."""
    return content[: 8 + int.from_bytes(content[:8], "little")]


def has_safetensors_head(content: bytes) -> bool:
    """Whether it begins as a safetensors file does; whole it may still not be."""
    return content[8:9] == b"{"


def has_own_head(content: bytes) -> bool:
    """Whether a safetensors file says that this project wrote it, in this format or another; it may be damaged."""
    try:
        return any(key.startswith(OWN) for key in json.loads(head_of(content)[8:])["__metadata__"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _read_head(head: bytes) -> dict[str, Any] | None:
    """Our entry of the head, or None if a byte of the head is damaged."""
    try:
        entry = str(json.loads(head[8:])["__metadata__"][FORMAT])
        stated: dict[str, Any] = json.loads(entry[len(BLANK) :])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    seal = entry[: len(BLANK)]
    return stated if _digest([head.replace(seal.encode(), BLANK.encode(), 1)]) == seal else None


def _undamaged(tensors: State, parts: Parts, expected: Mapping[str, str]) -> tuple[State, list[str]]:
    """The undamaged tensors, and a description of the others."""
    rows, spare, needed = parts.split(tensors)
    found = _digests(tensors, parts)
    if found["needed"] != expected["needed"]:
        raise DamagedFileError("its checksum does not match")
    lost = []
    for prefix, here, there in zip(
        parts.spare or (None,), found["spare"].split(), expected["spare"].split(), strict=True
    ):
        if here != there:
            lost.append(f"what it holds under {prefix} is damaged and left out")
            spare = {name: tensor for name, tensor in spare.items() if not name.startswith(prefix or "")}
    pairs = list(zip(found["rows"].split(), expected["rows"].split(), strict=True))
    kept = [entry for entry, (here, there) in enumerate(pairs) if here == there]
    if len(kept) < len(pairs):
        lost.append(f"{len(pairs) - len(kept)} of {len(pairs)} entries under {parts.rows} are damaged and left out")
        rows = {name: tensor[torch.tensor(kept, dtype=torch.int64)] for name, tensor in rows.items()}
    if lost and not (kept or spare or needed):
        raise DamagedFileError("every part of it is damaged")
    return rows | spare | needed, lost


def _digests(tensors: State, parts: Parts) -> dict[str, str]:
    """One per part, and for the table one per entry; names, types and shapes are in the head's own digest."""
    rows, spare, needed = parts.split(tensors)
    columns = [rows[name] for name in sorted(rows)]
    under = [{name: spare[name] for name in spare if name.startswith(prefix)} for prefix in parts.spare]
    if len({len(column) for column in columns}) > 1:
        raise ValueError("the columns of a table have different lengths")
    return {
        "rows": " ".join(_digest(map(_bytes, entry)) for entry in zip(*columns, strict=True)),
        "spare": " ".join(_digest(_bytes(part[name]) for name in sorted(part)) for part in under or [{}]),
        "needed": _digest(_bytes(needed[name]) for name in sorted(needed)),
    }


def _prefixes(spare: Any) -> tuple[str, ...]:
    """Earlier versions wrote one prefix as text."""
    return (spare,) if isinstance(spare, str) else tuple(spare or ())


def _digest(chunks: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=len(BLANK) // 2)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
