"""Checks of a device's reply before any arithmetic: a bad reply is dropped alone, with a reason.

A mean has no defence of its own: one NaN makes the global model NaN, a tensor of shape (1,) broadcasts in silence, and
a reply a million times too long is the new model. After the gate the arithmetic needs no checks.
"""

import math
from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor

from sofed_flwr.contracts import State, Update

SMALLEST_JURY = 3
"""With fewer replies a median names no outlier."""


def pass_gate(
    updates: Sequence[Update], reference: State, round_number: int, norm_limit: float
) -> tuple[list[Update], dict[int, str]]:
    """The updates that may enter the mean, in order of device, and the reasons of those that may not."""
    reasons = {update.device: reason_to_drop(update, reference, round_number) for update in updates}
    dropped = {device: reason for device, reason in reasons.items() if reason is not None}
    sound = [update for update in updates if update.device not in dropped]
    dropped |= outliers(sound, reference, norm_limit)
    accepted = sorted((update for update in sound if update.device not in dropped), key=lambda update: update.device)
    return accepted, dropped


def reason_to_drop(update: Update, reference: State, round_number: int) -> str | None:
    """Why this reply cannot enter the mean, or None."""
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
        if not _is_finite(tensor):
            return f"{name} holds a value that is not finite"
    return None


def outliers(updates: Sequence[Update], reference: State, limit: float) -> dict[int, str]:
    """Reasons by device for updates longer than `limit` times the median length; lengths are distances travelled."""
    if len(updates) < SMALLEST_JURY or math.isinf(limit):
        return {}
    lengths = {update.device: _distance(update.shared, reference) for update in updates}
    middle = median(lengths.values())
    return {
        device: f"moved the model by {length:.3g}, over {limit:g} times the median {middle:.3g}"
        for device, length in lengths.items()
        if length > limit * middle
    }


def _is_finite(tensor: Tensor) -> bool:
    """A sum hides no NaN and no infinity and takes a ninth of the time; one that overflows needs a closer look."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def _distance(state: State, reference: State) -> float:
    """In float32, five times faster than in double: lengths are compared by a factor, not to the last digit."""
    return math.hypot(
        *(
            float(torch.dist(state[name].float(), tensor.float()))
            for name, tensor in reference.items()
            if tensor.is_floating_point()
        )
    )
