"""Checks of the replies of a round before any arithmetic: a bad reply is dropped alone, with a reason.

A mean has no defence of its own: one NaN makes the global model NaN, a tensor of shape (1,) broadcasts in silence, and
a reply a million times too long is the new model. After the gate the arithmetic needs no checks.
"""

import math
from collections.abc import Container, Sequence
from typing import NamedTuple

import torch

from sofed_flwr.contracts import State, Update
from sofed_flwr.jury import against_the_others, too_long


class Verdict(NamedTuple):
    """Who may enter the aggregate, in order of device; who may not, and why; how many were sound, odd ones included."""

    accepted: list[Update]
    dropped: dict[int, str]
    sound: int


def pass_gate(
    updates: Sequence[Update], reference: State, round_number: int, norm_limit: float, directed: bool
) -> Verdict:
    """Each reply by itself, then the sound ones against each other: lengths, and directions if `directed`."""
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
    dropped |= too_long(sound, norm_limit)
    if directed:
        dropped |= against_the_others(_left(updates, dropped), reference)
    return Verdict(_left(updates, dropped), dropped, len(sound))


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


def _left(updates: Sequence[Update], dropped: Container[int]) -> list[Update]:
    return sorted((update for update in updates if update.device not in dropped), key=lambda update: update.device)


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
