"""A buffer's tensors as they lie on disk: which there are, what they may hold, and how to read those of a device.

A device's own process reads them (`device/buffer.py`), and so does whoever looks at a device on the same machine: the
diagnostics of a simulation, `sofed inspect`. A checksum shows that a file is as it was written, not by whom, so all of
them check it here.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from sofed_flwr.core.records import State
from sofed_flwr.core.state_dicts import under
from sofed_flwr.storage.generations import Generation, Store

BUFFER = "buffer."
"""Before the names of a buffer's tensors in a device's state."""
COLUMN = "column."
"""Before the names of a policy's columns among them."""
OLDEST = 2**53
"""More iterations than any device runs: an age beyond it was not counted."""
MOST_NUMBERS = 4096
"""That a column may have per image: a feature vector has room, a picture has not."""
EXPECTED = {"images": (torch.uint8, 4), "scores": (torch.float32, 1), "ages": (torch.int64, 1)}


class HeldImages(NamedTuple):
    """What a device held after a round: pixels uint8 (n, 3, H, W), scores (n,), NaN for none, and ages (n,)."""

    round: int
    images: Tensor
    scores: Tensor
    ages: Tensor


def read_buffer(home: Path) -> HeldImages | None:
    """The buffer in a device's state directory, read without a lock; None if there is none that can be used."""
    held = Store(home).newest()
    try:
        return None if held is None else buffer_of(held)
    except ValueError:
        return None


def buffer_of(generation: Generation) -> HeldImages:
    """The buffer in one state; a `ValueError` says why it is no device's."""
    number, state = generation.meta.get("round"), under(BUFFER, generation.tensors)
    if type(number) is not int or not isinstance(generation.meta.get("run"), str):
        raise ValueError("it names no run and round")
    if not state:
        raise ValueError("it holds no buffer")
    refuse_malformed(state)
    return HeldImages(number, *(state[name] for name in EXPECTED))


def refuse_malformed(state: State) -> None:
    """A `ValueError` says why a state is none of a buffer's."""
    columns = under(COLUMN, state)
    found = {name: (tensor.dtype, tensor.dim()) for name, tensor in state.items() if not name.startswith(COLUMN)}
    if found != EXPECTED:
        raise ValueError(f"it holds {found}, expected {EXPECTED}")
    images, scores, ages = (state[name] for name in EXPECTED)
    if not len(images) == len(scores) == len(ages):
        raise ValueError(f"it has {len(images)} images, {len(scores)} scores and {len(ages)} ages")
    if len(images) and (images.shape[1] != 3 or not images[0].numel()):
        raise ValueError(f"its images have the shape {tuple(images.shape[1:])}, expected (3, H, W)")
    for name, column in columns.items():
        rows = column.is_floating_point() and column.dim() in (1, 2) and len(column) == len(ages)
        if not rows or column[:1].numel() > MOST_NUMBERS:
            raise ValueError(f"its column {name[:50]} is {column.dtype} of shape {tuple(column.shape)}")
    if len(ages) and not 0 <= int(ages.min()) <= int(ages.max()) <= OLDEST:
        raise ValueError(f"its ages go from {int(ages.min())} to {int(ages.max())}")
