"""Replies of one round compared with each other: which is far too long, which points against the others.

Lengths are compared for every strategy that is not robust to a long update. Directions only for strategies that ask for
it and with `clip_norm_ratio`: devices that see different things agree little once the encoder has settled (the
cosines between the updates of five devices of the demo fall from 0.5 in round 1 to between -0.05 and 0.13 in the last
four of 18), and a strategy for honest devices should not drop any of them.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sofed_flwr.core.records import State, Update
from sofed_flwr.core.state_dicts import is_parameter

AGAINST, AGREE = -0.02, 0.04
"""Cosines below which an update points against another one, and from which on it agrees with it; between them it is
chance. Devices that see different classes had -0.01 in the first rounds of real training.
"""


def lower_median(values: Collection[float]) -> float:
    """The middle value, the lower one of two.

    With honest devices as at least half of all it is no longer than some honest device's update: malicious clients up
    to half of all cannot raise it above that. They can lower it: exactly half of them, whose updates are short, decide
    it, and the worst they reach is that the others are dropped and nothing is learned. As a minority they cannot lower
    it below the shortest honest update either.
    """
    return sorted(values)[(len(values) - 1) // 2]


def too_long(lengths: Mapping[int, float], limit: float, middle: float) -> dict[int, str]:
    """Reasons by device for updates longer than `limit` times the length `middle`.

    A length that is not finite is always too long.
    """
    return {
        device: f"moved the model by {length:.3g}, over {limit:g} times the median {middle:.3g}"
        for device, length in lengths.items()
        if length > limit * middle or not math.isfinite(length)
    }


class Screening(NamedTuple):
    """Reasons by device for those outvoted, and whether all others agree with each other, so that the vote counts."""

    outvoted: dict[int, str]
    settled: bool


def screen(updates: Sequence[Update], reference: State) -> Screening:
    """Outvoted is an update that points against more than half of all devices.

    A vote, not a mean of cosines: two malicious clients with one and the same update have a mean cosine that their
    agreement with each other lifts above the honest ones'. Here they have two votes. What holds while malicious clients
    are fewer than half: if all honest devices agree with each other, none of them is outvoted, and a malicious one that
    points against all of them is, however long it is and however many agree with it. Where honest devices disagree
    (with SimCLR in the first round: cosines from -0.11 to 0.16) malicious votes can decide who is outvoted, so such a
    vote is not settled. They can still win one by agreeing with all honest devices that are left.
    """
    cosines = _cosines(updates, reference)
    against = (cosines < AGAINST).sum(dim=1).tolist()
    rest = [place for place, votes in enumerate(against) if 2 * votes <= len(updates)]
    reasons = {
        updates[place].device: f"points against {votes} of the other {len(updates) - 1}"
        for place, votes in enumerate(against)
        if place not in rest
    }
    return Screening(reasons, bool((cosines[rest][:, rest] >= AGREE).all()))


def _cosines(updates: Sequence[Update], reference: State) -> Tensor:
    """Of all pairs, over the trained tensors; one tensor at a time, so that whole differences are never in memory.

    An update of length zero has the cosine 0 to all others: it neither agrees nor disagrees.
    """
    products = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for name, before in reference.items():
        if updates and is_parameter(name, before):
            moved = torch.stack([(update.shared[name] - before).flatten().float() for update in updates])
            products += moved @ moved.T
    lengths = products.diagonal().sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    return (products / lengths / lengths[:, None]).fill_diagonal_(1.0)
