"""Named tensors and JSON-able meta as the bytes of a safetensors file that says which of its parts are damaged.

The head of a safetensors file (its length, then JSON) describes the data behind it. Ours also carries a digest of
itself and one for every part that can be lost alone, so that one rotten byte costs one part: an entry of a table,
something that a reader can do without, or the file where its tensors are worth nothing without each other. The head is
small and everything hangs on it; whoever keeps a copy can lose the original (see `store.py`).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import safetensors
import safetensors.torch
import torch

from sofed_flwr.contracts import State

FORMAT = "sofed/2"
BLANK = "0" * 32
"""Where the digest of the head will stand, while it is computed."""


class DamagedFileError(ValueError):
    """The file is not what was written: torn, rotten or foreign."""


@dataclass(frozen=True)
class Parts:
    """What a file may lose and still be of use; tensors under neither prefix are needed, all of them.

    Tensors under `rows` are the columns of one table, entry i being the i-th row of each: a damaged entry is left out.
    Tensors under `spare` belong together and can be done without: a damaged byte in one leaves out all.
    """

    rows: str | None = None
    spare: str | None = None

    def split(self, tensors: State) -> tuple[State, State, State]:
        """The table, the spare and the needed tensors."""
        rows = {name: tensor for name, tensor in tensors.items() if self.rows and name.startswith(self.rows)}
        spare = {name: tensor for name, tensor in tensors.items() if self.spare and name.startswith(self.spare)}
        return rows, spare, {name: tensors[name] for name in tensors.keys() - rows.keys() - spare.keys()}


@dataclass(frozen=True)
class Content:
    """What a file holds, and in `damage` what it no longer holds, in words."""

    tensors: State
    meta: dict[str, Any]
    damage: list[str] = field(default_factory=list)


def encode(tensors: State, meta: Mapping[str, Any], parts: Parts) -> bytes:
    """The bytes of the file; equal content gives equal bytes."""
    stated = {"meta": meta, "rows": parts.rows, "spare": parts.spare, "digests": _digests(tensors, parts)}
    # One entry, because safetensors writes several in random order and equal content shall give equal files.
    content = to_bytes(tensors, {FORMAT: BLANK + json.dumps(stated, sort_keys=True)})
    head = head_of(content)
    return b"".join([head.replace(BLANK.encode(), _digest([head]).encode(), 1), memoryview(content)[len(head) :]])


def decode(content: bytes, copy: bytes | None = None) -> Content:
    """What is left of what was encoded, with the help of a copy of its head; `DamagedFileError` if that is nothing."""
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
    tensors, lost = _undamaged(from_bytes(content), Parts(stated["rows"], stated["spare"]), stated["digests"])
    return Content(tensors, stated["meta"], damage + lost)


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


def _read_head(head: bytes) -> dict[str, Any] | None:
    """What the head says beyond safetensors' own, or None if one of its bytes is not as written."""
    try:
        entry = str(json.loads(head[8:])["__metadata__"][FORMAT])
        stated: dict[str, Any] = json.loads(entry[len(BLANK) :])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    seal = entry[: len(BLANK)]
    return stated if _digest([head.replace(seal.encode(), BLANK.encode(), 1)]) == seal else None


def _undamaged(tensors: State, parts: Parts, expected: Mapping[str, str]) -> tuple[State, list[str]]:
    """The tensors without what is damaged, and what that is."""
    rows, spare, needed = parts.split(tensors)
    found = _digests(tensors, parts)
    if found["needed"] != expected["needed"]:
        raise DamagedFileError("its checksum does not match")
    lost = []
    if found["spare"] != expected["spare"]:
        lost.append(f"what it holds under {parts.spare} is damaged and left out")
        spare = {}
    pairs = list(zip(found["rows"].split(), expected["rows"].split(), strict=True))
    kept = [entry for entry, (here, there) in enumerate(pairs) if here == there]
    if len(kept) < len(pairs):
        lost.append(f"{len(pairs) - len(kept)} of {len(pairs)} entries under {parts.rows} are damaged and left out")
        rows = {name: tensor[torch.tensor(kept, dtype=torch.int64)] for name, tensor in rows.items()}
    if lost and not (kept or spare or needed):
        raise DamagedFileError("every part of it is damaged")
    return rows | spare | needed, lost


def _digests(tensors: State, parts: Parts) -> dict[str, str]:
    """One per part, and for the table one per entry; names, types and shapes stand in the head, which has its own."""
    rows, spare, needed = parts.split(tensors)
    columns = [rows[name] for name in sorted(rows)]
    assert len({len(column) for column in columns}) <= 1, "the columns of a table have different lengths"
    return {
        "rows": " ".join(_digest(map(_bytes, entry)) for entry in zip(*columns, strict=True)),
        "spare": _digest(_bytes(spare[name]) for name in sorted(spare)),
        "needed": _digest(_bytes(needed[name]) for name in sorted(needed)),
    }


def _digest(chunks: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=len(BLANK) // 2)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().numpy().tobytes()
