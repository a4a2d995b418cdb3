"""Checks of the replies of a round before any arithmetic: a bad reply is dropped alone, with a reason.

A mean has no defence of its own: one NaN makes the global model NaN, a tensor of shape (1,) broadcasts in silence, and
a reply a million times too long is the new model. After the gate the arithmetic needs no checks.

Lengths are those of the trained parameters, compared within the round and over rounds. An update longer than
`norm_limit` times both the round's lower median and the usual length, the lower median of the last rounds, is dropped.
(Both: at night, when most cameras see nothing new, the other updates are longer than theirs but not longer than usual.)
A whole fleet may move further than before (a weekend's images, another learning rate), so an update that is only longer
than usual is clipped to `norm_limit` times the usual length, not dropped. Without this a malicious client just below
the limit that reverses the model makes the honest updates longer from round to round, and with them its own limit. The
usual length follows the fleet; once five rounds are known it rises by no more than `norm_limit` in three.

With `clip_norm` no update is dropped for its length: all are clipped to that many times the usual length or the round's
lower median, whichever is smaller. A clipped update still takes its share of the step: one malicious client of five
turns 4/5 of a step into 3/5. So directions are compared too, as for `fedmedian`, and an update that points against more
than half of the others is dropped. Where the honest updates do not agree on a direction nothing is dropped for it, and
clipping alone remains: honest devices that move by about the same length prevail if `clip_norm` is below their number
per malicious client. `norm_limit` alone ensures that for more than `norm_limit` honest devices per malicious one.
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from sofed_flwr.core.records import State, Update
from sofed_flwr.core.state_dicts import is_parameter, not_finite, unlike
from sofed_flwr.server import batch_norm
from sofed_flwr.server.outliers import lower_median, screen, too_long

MEMORY = 5
"""Rounds whose lengths define the usual length."""
SETTLED = 2
"""Rounds needed for it: the first one, from random weights, moves 6 times as far as the second."""


class Remark(NamedTuple):
    """What the gate did to a round without dropping a reply: name of the metric, its value, reason."""

    name: str
    value: float
    reason: str


class Verdict(NamedTuple):
    """Accepted updates, in order of device; reasons of the dropped ones; number of valid replies, outliers included."""

    accepted: list[Update]
    dropped: dict[int, str]
    sound: int
    remarks: list[Remark]
    typical: float | None
    """Typical length of this round's updates, for the gate to remember; None where lengths are not compared."""


@dataclass
class Gate:
    """Remembers the lengths of the last rounds that counted: part of the server's checkpoint.

    `bounded` and `directed` are what the strategy asks for: no comparison at all, and that of directions.
    """

    norm_limit: float
    clip_norm: float | None
    bounded: bool
    directed: bool
    _lengths: list[float] = field(default_factory=list)

    def check(self, updates: Sequence[Update], reference: State, round_number: int) -> Verdict:
        """Check each reply alone, then compare the valid ones as far as the strategy needs it."""
        dropped: dict[int, str] = {}
        lengths: dict[int, float] = {}
        for update in updates:
            reason = misfit(update, reference, round_number)
            if reason is None:
                lengths[update.device] = _distance(update.shared, reference)
                reason = _not_finite(update.shared) or batch_norm.fault(update.shared, reference)
            if reason is not None:
                dropped[update.device] = reason
        sound = {device: length for device, length in lengths.items() if device not in dropped}
        if self.bounded or not sound:
            return Verdict(_left(updates, dropped), dropped, len(sound), [], None)
        return self._compare(_left(updates, dropped), dropped, sound, reference)

    def remember(self, verdict: Verdict) -> None:
        """Called when the round counts; a length of zero is not kept, since later ones are compared by a factor."""
        if verdict.typical:
            self._lengths = [*self._lengths, verdict.typical][-MEMORY:]

    def state_dict(self) -> State:
        """Without it a resumed run would compare with one round only."""
        return {"lengths": torch.tensor(self._lengths, dtype=torch.float64)}

    def load_state_dict(self, state: State) -> None:
        """Continue from it; an empty state is a first start."""
        self._lengths = state["lengths"].tolist() if "lengths" in state else []

    def _compare(
        self, updates: list[Update], dropped: dict[int, str], lengths: Mapping[int, float], reference: State
    ) -> Verdict:
        """Compare lengths, statistics, then directions of updates that are valid alone."""
        now = lower_median([length for length in lengths.values() if math.isfinite(length)] or [0.0])
        usual = lower_median(self._lengths) if self._lengths else math.inf
        middle = max(now, usual) if len(self._lengths) >= SETTLED else now
        odd = too_long(lengths, math.inf if self.clip_norm else self.norm_limit, middle)
        bound = self.clip_norm * min(now, usual) if self.clip_norm else self.norm_limit * usual
        left = batch_norm.limited(_left(updates, odd), reference)
        remarks = []
        if longer := [update.device for update in left if lengths[update.device] > bound]:
            left = [_clipped(u, reference, bound / lengths[u.device]) if u.device in longer else u for u in left]
            remarks.append(Remark("clipped", len(longer), f"the updates of {longer} are clipped to {bound:.3g}"))
        if self.directed or self.clip_norm is not None:
            outvoted, settled = screen(left, reference)
            if outvoted and (not settled or 2 * len(odd | outvoted) > len(lengths)):
                reason = f"{len(outvoted)} of {len(left)} updates point against more than half, but"
                why = "they are the majority" if settled else "the others do not agree, either"
                remarks.append(Remark("screening_skipped", 1, f"{reason} {why}: none is dropped for it"))
            else:
                odd |= outvoted
        return Verdict(_left(left, odd), dropped | odd, len(lengths), remarks, min(now, self.norm_limit * usual))


def misfit(update: Update, reference: State, round_number: int) -> str | None:
    """Why this reply is not a model of this round, or None."""
    if update.round != round_number:
        return f"answers round {update.round}, expected {round_number}"
    return unlike(update.shared, reference, "the global model's")


def unusable(state: State) -> str | None:
    """Why an aggregate cannot be the global model, or None: the sum of valid updates may overflow."""
    negative = [name for name, tensor in state.items() if name.endswith(batch_norm.VARIANCE) and tensor.min() < 0]
    return _not_finite(state) or (f"{negative[0]} holds a negative variance" if negative else None)


def _left(updates: Sequence[Update], dropped: Container[int]) -> list[Update]:
    return sorted((update for update in updates if update.device not in dropped), key=lambda update: update.device)


def _distance(state: State, reference: State) -> float:
    """Of the parameters, in float32, which is exact enough; sorted, as a checkpoint orders names otherwise."""
    names = sorted(name for name, tensor in reference.items() if is_parameter(name, tensor))
    return math.hypot(*(float(torch.dist(state[name].float(), reference[name].float())) for name in names))


def _clipped(update: Update, reference: State, scale: float) -> Update:
    """The same step, shorter; statistics and counters are no steps."""
    shorter = {
        name: torch.lerp(before.double(), update.shared[name].double(), scale).to(before.dtype)
        for name, before in reference.items()
        if is_parameter(name, before)
    }
    return replace(update, shared=update.shared | shorter)


def _not_finite(state: State) -> str | None:
    name = not_finite(state)
    return None if name is None else f"{name} holds a value that is not finite"
