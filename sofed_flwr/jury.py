"""Replies of one round compared with each other: which is far too long, which points against the others.

One reply alone shows neither. Lengths are compared for every strategy that a long update could carry away. Directions
only for strategies that ask for it: devices that see different things agree little once the encoder has settled (the
cosines between the updates of the demo's five devices fall from 0.5 in round 1 to between -0.09 and 0.12 in the last
four of 18), and a strategy for honest devices should then lose none of them.
"""

from collections.abc import Mapping, Sequence
from statistics import median

import torch
from torch import Tensor

from sofed_flwr.contracts import State, Update
from sofed_flwr.parameters import is_parameter

SMALLEST_JURY = 3
"""With fewer replies nobody can say which one is odd."""


def too_long(lengths: Mapping[int, float], limit: float) -> dict[int, str]:
    """Reasons by device for updates that moved the model by more than `limit` times the median."""
    if len(lengths) < SMALLEST_JURY:
        return {}
    middle = median(lengths.values())
    return {
        device: f"moved the model by {length:.3g}, over {limit:g} times the median {middle:.3g}"
        for device, length in lengths.items()
        if length > limit * middle
    }


def against_the_others(updates: Sequence[Update], reference: State) -> dict[int, str]:
    """Reasons by device for updates whose mean cosine to the others is negative, as a flipped one's is.

    The worst goes first and the rest is looked at anew: among three, one liar makes two honest ones look undecided.
    Cosines, not dot products: a long update has no louder voice. Any minority of flipped updates goes before an honest
    one does, as long as the honest ones agree at all.
    """
    cosines = _cosines(updates, reference)
    rest = list(range(len(updates)))
    reasons = {}
    while len(rest) >= SMALLEST_JURY:
        company = (cosines[rest][:, rest].sum(dim=1) - 1) / (len(rest) - 1)
        worst = int(company.argmin())
        if company[worst] >= 0:
            break
        reasons[updates[rest.pop(worst)].device] = f"points against the others: mean cosine {company[worst]:.2f}"
    return reasons


def _cosines(updates: Sequence[Update], reference: State) -> Tensor:
    """Of all pairs, over the trained tensors; one tensor at a time, so the differences never stand side by side whole.

    An update of length zero has the cosine 0 to all others: it is with nobody and against nobody.
    """
    products = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for name, before in reference.items():
        if is_parameter(name, before):
            moved = torch.stack([(update.shared[name] - before).flatten().float() for update in updates])
            products += moved @ moved.T
    lengths = products.diagonal().sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    return (products / lengths / lengths[:, None]).fill_diagonal_(1.0)
