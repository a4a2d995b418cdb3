"""What BatchNorm's running statistics and counters may be: they are measurements, so their meaning bounds them.

A negative variance makes every feature NaN, a huge one makes all images look alike, and no strategy that takes a mean
of them has a defence.

The bounds are wide for honest devices. Measured in the first rounds, from the initial variances of 1 on: the demo
with three seeds, and with two classes per device; five devices with two classes of CIFAR-10 each, six methods, learning
rates to 0.5, ResNet-8 and MobileNetV3, 3 to 20 steps per round, one device with a single step. A layer's largest
variance grew by a factor of 427 (GROWTH), its largest mean was 1.4 standard deviations of its widest channel (SHIFT).
From the other devices' median the variances of a layer were a factor of 3.9 away, 7 for the device with one step, its
means 1.0 standard deviations (DISTANCE). After the first round all are far smaller. The mean of a layer's variances was
up to twice their median in the demo's first round (LIFT), and 1.55 times against most. A variance may fall to 0
at once: it is that of a constant channel, cameras at night see nothing but black, and BatchNorm adds its epsilon.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sofed_flwr.core.records import State, Update

MEAN, VARIANCE = "running_mean", "running_var"
GROWTH = 1e4
"""Of a variance in one round, over the layer's largest in the global model, or over 1, where every network begins."""
LARGEST = 1e6
"""Of all variances: growth from round to round ends here."""
SHIFT = 10.0
"""Of a mean, in standard deviations of the layer's widest channel, or of 1."""
MOST_BATCHES = 2**48
"""Of a counter: thousands of years of steps, and the sum over thousands of devices fits its type."""
LIFT = 3.0
"""Of a layer's variances: all devices' mean over their median."""
LIFT_AGAINST_MOST = 1.75
"""The same where most devices measured less than the global model has, and the mean would raise it all the same. An
honest device forgets a tenth of the global model's variance with every batch: from 6 batches per round on, what a round
lifted is forgotten by the next."""
DISTANCE = 5.0
"""Of a layer's means from the devices' median, in standard deviations."""
FEWEST = 3
"""With fewer replies the lower median is the reply of any one of them."""


def fault(state: State, reference: State) -> str | None:
    """The first statistic or counter of a finite reply with an impossible value, or None; names and shapes are checked.

    It depends on one reply and the global model only. Differential privacy, which takes the plain mean of statistics,
    needs that: each is bounded, and no device's part in the round depends on another device's data.
    """
    for name, before in reference.items():
        low, high = 0.0, float(MOST_BATCHES)
        if name.endswith(VARIANCE):
            high = min(LARGEST, GROWTH * max(1.0, float(before.max())))
        elif name.endswith(MEAN):
            high = SHIFT * _widest(name, state, reference) ** 0.5
            low = -high
        elif before.is_floating_point():
            continue
        least, most = state[name].min().item(), state[name].max().item()
        if least < low or most > high:
            return f"{name} reaches from {least:.3g} to {most:.3g}, expected {low:.3g} to {high:.3g}"
    return None


def limited(updates: Sequence[Update], reference: State) -> list[Update]:
    """The same updates, with statistics limited to what the other devices measured.

    `fault` alone would let one device of five multiply a variance by GROWTH / 5 in every round. The lower median of a
    round's replies is an honest measurement as long as honest devices are the majority. Limited and not dropped: a
    device may be the only one that sees daylight. Statistics within the limits are unchanged.
    """
    if len(updates) < FEWEST:
        return list(updates)
    changed: list[State] = [{} for _ in updates]
    for name in (name for name in reference if name.endswith(VARIANCE)):
        mean = name.removesuffix(VARIANCE) + MEAN
        level = _middle(updates, name).mean()
        variances, means = _variances(updates, name, reference[name]), _means(updates, mean, DISTANCE * level.sqrt())
        for update, new, variance, shift in zip(updates, changed, variances, means, strict=True):
            found = {name: variance, mean: shift}
            new.update({key: value for key, value in found.items() if value is not update.shared[key]})
    return [replace(update, shared=update.shared | new) for update, new in zip(updates, changed, strict=True)]


def _variances(updates: Sequence[Update], name: str, before: Tensor) -> list[Tensor]:
    """Each device's own, or the median for all of them where their mean would lift the layer."""
    own, middle = [update.shared[name] for update in updates], _middle(updates, name)
    mean, level, past = torch.stack(own).mean(), middle.mean(), before.mean()
    lifted = mean > (LIFT_AGAINST_MOST if mean > past > level else LIFT) * level
    return [middle] * len(own) if lifted else own


def _means(updates: Sequence[Update], name: str, most: Tensor) -> list[Tensor]:
    """Each layer's means at most so far (root mean square) from their median."""
    centre = _middle(updates, name)
    away = [update.shared[name] - centre for update in updates]
    excess = [distance.square().mean().sqrt() / most for distance in away]
    return [
        centre + distance / over if over > 1 else update.shared[name]
        for update, distance, over in zip(updates, away, excess, strict=True)
    ]


def _middle(updates: Sequence[Update], name: str) -> Tensor:
    """Lower median, channel by channel."""
    return torch.stack([update.shared[name] for update in updates]).median(dim=0).values


def _widest(name: str, *states: State) -> float:
    """Largest variance beside this mean in any of the states, at least 1."""
    variance = name.removesuffix(MEAN) + VARIANCE
    return max(1.0, *(float(state[variance].max()) for state in states if variance in state))
