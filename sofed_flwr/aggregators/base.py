"""What an aggregator is: accepted updates of one round -> the next global model. And the plain mean, which all need."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sofed_flwr.contracts import State, Update


class Aggregator(Protocol):
    """Gets only updates that passed the gate, in order of device number, so that sums round the same way every time.

    What it remembers from round to round is part of the server's checkpoint, or a resumed run would go elsewhere.
    """

    @property
    def fewest(self) -> int:
        """Updates without which it cannot keep its promise: a round with fewer leaves the model as it is."""

    def aggregate(self, updates: Sequence[Update], current: State) -> State:
        """Combine; names, shapes and dtypes of the result are those of `current`."""

    def state_dict(self) -> State:
        """What it remembers."""

    def load_state_dict(self, state: State) -> None:
        """Remember that; nothing (an older checkpoint) is a first start."""


class Stateless:
    """Base of the aggregators that remember nothing; one update is enough unless they say otherwise."""

    @property
    def fewest(self) -> int:
        """Any number will do."""
        return 1

    def state_dict(self) -> State:
        """Nothing."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing to remember."""


def mean(updates: Sequence[Update], names: Iterable[str]) -> State:
    """1/K mean tensor by tensor, adding one update at a time: K models never stand in memory side by side."""
    return {name: _mean([update.shared[name] for update in updates]) for name in names}


def _mean(tensors: list[Tensor]) -> Tensor:
    """Floats in float32 whatever they travelled as; integer counters stay integers."""
    dtype = tensors[0].dtype
    total = torch.zeros_like(tensors[0], dtype=torch.float32 if dtype.is_floating_point else dtype)
    for tensor in tensors:
        total += tensor
    result = total / len(tensors) if dtype.is_floating_point else total // len(tensors)
    return result.to(dtype)
