"""What an aggregator is: accepted updates of one round -> the next global model. And the plain mean, which all need."""

from collections.abc import Iterable, Mapping, Sequence
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
        """Sound updates, liars among them, without which it cannot keep its promise: a round with fewer leaves the
        model as it is.
        """

    @property
    def bounded(self) -> bool:
        """Whether an update, however long, can change little; the gate then compares no lengths.

        A gate that did would take away the very device that a robust strategy counts among its liars, and would let
        one device decide who else is dropped, which differential privacy has no room for.
        """

    @property
    def directed(self) -> bool:
        """Whether the gate shall drop updates that point against the others (`jury.py` says what that may cost)."""

    def aggregate(self, updates: Sequence[Update], current: State) -> State:
        """Combine; names, shapes and dtypes of the result are those of `current`."""

    def report(self) -> Mapping[str, float]:
        """Numbers for the diary after a round that counted."""

    def exhausted(self) -> str | None:
        """Why it will aggregate no further round, or None."""

    def state_dict(self) -> State:
        """What it remembers."""

    def load_state_dict(self, state: State) -> None:
        """Remember that; nothing (an older checkpoint) is a first start."""


class Unlimited:
    """What most aggregators answer: any number of updates, no longer than usual, for ever, and nothing to report."""

    @property
    def fewest(self) -> int:
        """Any number will do."""
        return 1

    @property
    def bounded(self) -> bool:
        """No: the gate looks at lengths."""
        return False

    @property
    def directed(self) -> bool:
        """No: whoever trusts the devices loses none for seeing other things than the rest."""
        return False

    def report(self) -> Mapping[str, float]:
        """Nothing."""
        return {}

    def exhausted(self) -> str | None:
        """Never."""
        return None


class Stateless(Unlimited):
    """Base of the aggregators that remember nothing."""

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
