"""Checks of a device's reply before any arithmetic: a bad reply is dropped alone, with a reason.

A mean has no defence of its own: one NaN makes the global model NaN, a tensor of shape (1,) broadcasts in silence, and
a reply a million times too long is the new model. After the gate the arithmetic needs no checks.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median

import torch

from sofed_flwr.contracts import State, Update

SMALLEST_JURY = 3
"""With fewer replies a median names no outlier."""


def pass_gate(
    updates: Sequence[Update], reference: State, round_number: int, norm_limit: float
) -> tuple[list[Update], dict[int, str]]:
    """The updates that may enter the mean, in order of device, and the reasons of those that may not."""
    dropped: dict[int, str] = {}
    lengths: dict[int, float] = {}
    for update in updates:
        reason = misfit(update, reference, round_number)
        if reason is None:
            lengths[update.device] = _distance(update.shared, reference)
            reason = None if math.isfinite(lengths[update.device]) else _not_finite(update.shared)
        if reason is not None:
            dropped[update.device] = reason
    sound = {device: length for device, length in lengths.items() if device not in dropped}
    dropped |= outliers(sound, norm_limit)
    accepted = sorted((update for update in updates if update.device not in dropped), key=lambda update: update.device)
    return accepted, dropped


def misfit(update: Update, reference: State, round_number: int) -> str | None:
    """Why this reply is no model of this round, or None."""
    if update.round != round_number:
        return f"answers round {update.round}, expected {round_number}"
    if update.shared.keys() != reference.keys():
        odd = sorted(update.shared.keys() ^ reference.keys())
        return f"tensor names differ from the global model's, first of {len(odd)}: {odd[0]}"
    for name, expected in reference.items():
        tensor = update.shared[name]
        if tensor.shape != expected.shape:
            return f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected.shape)}"
        if tensor.dtype != expected.dtype:
            return f"{name} has dtype {tensor.dtype}, expected {expected.dtype}"
    return None


def outliers(lengths: Mapping[int, float], limit: float) -> dict[int, str]:
    """Reasons by device for updates that moved the model by more than `limit` times the median."""
    if len(lengths) < SMALLEST_JURY:
        return {}
    middle = median(lengths.values())
    return {
        device: f"moved the model by {length:.3g}, over {limit:g} times the median {middle:.3g}"
        for device, length in lengths.items()
        if length > limit * middle
    }


def _distance(state: State, reference: State) -> float:
    """Not finite if any value is not, so one pass finds both; float32 will do, lengths are compared by a factor."""
    return math.hypot(
        *(
            float(torch.dist(state[name].float(), tensor.float()))
            for name, tensor in reference.items()
            if tensor.is_floating_point()
        )
    )


def _not_finite(state: State) -> str | None:
    """Which tensor it is; none if the values are finite and only their squares are not."""
    names = [name for name, tensor in state.items() if not tensor.isfinite().all()]
    return f"{names[0]} holds a value that is not finite" if names else None
