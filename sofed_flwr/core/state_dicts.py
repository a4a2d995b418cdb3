"""Named tensors (`nn.Module.state_dict`) as a whole: which are trained, how two states differ, their mean."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from sofed_flwr.core.records import State, Update

STATISTICS = ("running_mean", "running_var")
"""BatchNorm's: measured, not trained."""


def is_parameter(name: str, tensor: Tensor) -> bool:
    """Trained, as against measured (statistics) and counted (integers); a state dict has no other mark of it."""
    return tensor.is_floating_point() and not name.endswith(STATISTICS)


def not_finite(state: State) -> str | None:
    """The first tensor that holds NaN or infinity: training never removes one."""
    return next((name for name, tensor in state.items() if not tensor.isfinite().all()), None)


def unlike(state: State, expected: State, whose: str) -> str | None:
    """How names, shapes and dtypes of a state differ from the expected ones, which are `whose`, or None."""
    if odd := sorted(state.keys() ^ expected.keys()):
        return f"tensor names differ from {whose}, first of {len(odd)}: {odd[0]}"
    for name, tensor in expected.items():
        if state[name].shape != tensor.shape:
            return f"{name} has shape {tuple(state[name].shape)}, expected {tuple(tensor.shape)}"
        if state[name].dtype != tensor.dtype:
            return f"{name} has dtype {state[name].dtype}, expected {tensor.dtype}"
    return None


def over(prefix: str, state: State) -> State:
    """The same tensors, every name with the prefix."""
    return {prefix + name: tensor for name, tensor in state.items()}


def under(prefix: str, state: State) -> State:
    """The tensors that have the prefix, by their names without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def mean(updates: Sequence[Update], names: Iterable[str]) -> State:
    """1/K mean tensor by tensor; floats in float32 whatever they travelled as, integer counters stay integers."""
    return {name: _mean([update.shared[name] for update in updates]) for name in names}


def _mean(tensors: list[Tensor]) -> Tensor:
    """Adds one update at a time, so that only one float32 copy is in memory."""
    dtype = tensors[0].dtype
    total = torch.zeros_like(tensors[0], dtype=torch.float32 if dtype.is_floating_point else dtype)
    for tensor in tensors:
        total += tensor
    result = total / len(tensors) if dtype.is_floating_point else total // len(tensors)
    return result.to(dtype)
