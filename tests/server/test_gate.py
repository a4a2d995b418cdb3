"""A bad reply is dropped alone and by name; the rest is a plain mean."""

import re
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from sofed_flwr.core.records import State, Update
from sofed_flwr.server.gate import Gate, Verdict, unusable
from sofed_flwr.strategies.fedavg import fedavg
from tests.support.federation import same
from tests.support.replies import combined

GLOBAL = {
    "w": torch.zeros(2, 3),
    "bn.running_mean": torch.zeros(2),
    "bn.running_var": torch.ones(2),
    "steps": torch.tensor(4),
}


def update(device: int, value: float = 1.0, **changed: Tensor) -> Update:
    honest = {"w": torch.full((2, 3), value), "steps": torch.tensor(5)}
    return Update(device, 7, GLOBAL | honest | {name.replace("__", "."): tensor for name, tensor in changed.items()})


def without(name: str) -> State:
    return {key: tensor for key, tensor in update(0).shared.items() if key != name}


def check(updates: Sequence[Update], bounded: bool = False) -> Verdict:
    return Gate(10.0, None, bounded, directed=False).check(updates, GLOBAL, 7)


MALFORMED = {
    "missing": (Update(0, 7, without("w")), "first of 1: w"),
    "extra": (update(0, more=torch.zeros(1)), "first of 1: more"),
    "broadcastable": (update(0, w=torch.ones(1)), r"w has shape \(1,\), expected \(2, 3\)"),
    "transposed": (update(0, w=torch.ones(3, 2)), r"w has shape \(3, 2\)"),
    "float64": (update(0, w=torch.ones(2, 3, dtype=torch.float64)), "w has dtype torch.float64"),
    "integer": (update(0, w=torch.ones(2, 3, dtype=torch.int64)), "w has dtype torch.int64"),
    "nan": (update(0, float("nan")), "w holds a value that is not finite"),
    "infinite": (update(0, float("inf")), "w holds a value that is not finite"),
    "stale": (Update(0, 6, update(0).shared), "answers round 6, expected 7"),
    "negative variance": (
        update(0, bn__running_var=torch.tensor([1.0, -0.5])),
        "bn.running_var reaches from -0.5 to 1, expected 0 to 1e[+]04",
    ),
    "huge variance": (update(0, bn__running_var=torch.tensor([1.0, 2e4])), "from 1 to 2e[+]04, expected 0 to 1e[+]04"),
    "variance nan": (
        update(0, bn__running_var=torch.tensor([1.0, torch.nan])),
        "bn.running_var holds a value that is not finite",
    ),
    "mean far off": (update(0, bn__running_mean=torch.tensor([0.0, -11.0])), "from -11 to 0, expected -10 to 10"),
    "counted backwards": (update(0, steps=torch.tensor(-1)), "steps reaches from -1 to -1, expected 0 to"),
    "counted too far": (update(0, steps=torch.tensor(2**62)), "steps reaches from 4.61e[+]18"),
}


@pytest.mark.parametrize("bounded", [False, True], ids=["mean", "strategy that bounds updates itself"])
@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_reply_drops_only_itself(kind: str, bounded: bool) -> None:
    bad, reason = MALFORMED[kind]
    verdict = check([update(2), bad, update(1)], bounded)
    assert [good.device for good in verdict.accepted] == [1, 2]
    assert (list(verdict.dropped), verdict.sound) == ([0], 2)
    assert re.search(reason, verdict.dropped[0])


# statistics


def test_statistics_of_a_round_that_changed_much_pass_as_they_are() -> None:
    """Constant channels have the variance 0; the measured extremes of honest devices are in `batch_norm.py`."""
    wide = update(0, bn__running_var=torch.tensor([0.0, 3.0]), bn__running_mean=torch.tensor([2.5, -3.0]))
    crowd = [wide, *(update(k, bn__running_var=torch.tensor([0.05, 1.0])) for k in range(1, 5))]
    verdict = check(crowd)
    assert not verdict.dropped
    assert all(same(accepted.shared, given.shared) for accepted, given in zip(verdict.accepted, crowd, strict=True))


def test_the_room_of_a_variance_is_that_of_a_wide_layer_of_the_global_model() -> None:
    def passes(variance: float, widest: float) -> bool:
        wide = GLOBAL | {"bn.running_var": torch.tensor([0.5, widest])}
        reply = update(0, bn__running_var=torch.tensor([variance, 1.0]))
        return not Gate(10.0, None, bounded=True, directed=False).check([reply], wide, 7).dropped

    assert (passes(2e5, widest=30.0), passes(4e5, widest=30.0)) == (True, False)
    assert (passes(9e5, widest=9e5), passes(1.1e6, widest=9e5)) == (True, False)


def test_statistics_are_limited_by_what_the_others_measured() -> None:
    """The median's variances are 2.5 in the mean; with the odd device's 100 those of all are 35, so the median counts.

    Its means are (-18, 24) from the median's, 21.2 in the mean square, and may be 5 roots of 2.5 away, 7.91.
    """
    others = [
        update(k, bn__running_var=torch.tensor([1.0, 4.0]), bn__running_mean=torch.tensor([0.0, 1.0])) for k in (1, 2)
    ]
    odd = update(0, bn__running_var=torch.tensor([196.0, 4.0]), bn__running_mean=torch.tensor([-18.0, 25.0]))
    first, second, third = (u.shared for u in check([odd, *others]).accepted)
    assert first["bn.running_var"].tolist() == [1.0, 4.0]
    assert first["bn.running_mean"].tolist() == pytest.approx([-18 * 2.5 / 45**0.5, 1 + 24 * 2.5 / 45**0.5])
    assert same(second, others[0].shared)
    assert same(third, others[1].shared)
    kept = check([odd, *others], bounded=True).accepted[0].shared
    assert same(kept, odd.shared), "a private round: nobody's part depends on another's data"


@pytest.mark.parametrize("factor", [4.7, 10.9, 9e3], ids=["below the lower limit", "below the upper one", "above both"])
@pytest.mark.parametrize("batches", [6, 8, 20])
def test_one_device_of_five_cannot_lift_a_variance_round_after_round(batches: int, factor: float) -> None:
    """The others measure 1.0 and forget a tenth of the old value per batch: v = 1.74 (1 + 0.9^6 (v - 1)) is 10.8."""
    current = dict(GLOBAL)
    gate = Gate(10.0, None, bounded=False, directed=False)
    for _ in range(100):
        honest = 1.0 + 0.9**batches * (current["bn.running_var"] - 1.0)
        crowd = [update(k, bn__running_var=honest) for k in range(1, 5)]
        crowd.append(update(0, bn__running_var=factor * honest))
        verdict = gate.check(crowd, current, 7)
        assert len(verdict.accepted) == 5
        current = combined(fedavg(), verdict.accepted, current)
    assert float(current["bn.running_var"].max()) < 11


# lengths


def test_a_reply_a_million_times_too_long_is_dropped_among_two_or_more() -> None:
    crowd = [update(0, 1.0), update(1, 1.2), update(2, 1e6)]
    verdict = check(crowd)
    assert [good.device for good in verdict.accepted] == [0, 1]
    assert "over 10 times the median" in verdict.dropped[2]
    assert list(check(crowd[1:]).dropped) == [2]
    assert check(crowd[2:]).dropped == {}, "alone in the first round nothing is known"


def test_finite_values_whose_squares_are_not_are_an_outlier_and_no_excuse() -> None:
    crowd = [update(0, 1.0), update(1, 1.2), update(2, 1e30)]
    verdict = check(crowd)
    assert [good.device for good in verdict.accepted] == [0, 1]
    assert verdict.dropped[2].startswith("moved the model by inf, over 10 times the median")
    assert list(check(crowd[2:]).dropped) == [2]


def along(gate: Gate, *steps: float) -> Verdict:
    """Replies of these lengths, one number each."""
    zero = {"w": torch.zeros(1)}
    verdict = gate.check([Update(k, 7, {"w": torch.tensor([step])}) for k, step in enumerate(steps)], zero, 7)
    gate.remember(verdict)
    return verdict


def steps(verdict: Verdict) -> list[float]:
    return [round(float(update.shared["w"]), 4) for update in verdict.accepted]


def test_a_fleet_that_goes_further_than_usual_is_clipped_and_not_dropped_and_is_free_again_in_three_rounds() -> None:
    """Usual 2; 10 times that are 20 for three rounds, whose median is then 20 and allows 200."""
    gate = Gate(10.0, None, bounded=False, directed=False)
    for _ in range(5):
        along(gate, 2.0, 2.0, 3.0)
    for _ in range(3):
        verdict = along(gate, 60.0, 50.0, 15.0, 700.0)
        assert list(verdict.dropped) == [3], "within the round: over 10 times 50"
        assert steps(verdict) == [20.0, 20.0, 15.0]
        assert [remark[:2] for remark in verdict.remarks] == [("clipped", 2)]
    assert steps(along(gate, 60.0, 50.0, 15.0)) == [60.0, 50.0, 15.0]


def test_shorter_rounds_and_a_device_that_read_more_images_than_the_others_lose_nothing() -> None:
    gate = Gate(10.0, None, bounded=False, directed=False)
    for round_steps in ([7.7, 7.6, 7.5], [1.2, 1.1, 8.0], [1.0, 1.0, 1.0], [0.1, 0.1, 0.9], [1.5, 1.2, 9.0]):
        verdict = along(gate, *round_steps)
        assert (steps(verdict), verdict.dropped, verdict.remarks) == (round_steps, {}, [])


def test_in_a_round_in_which_most_devices_do_little_the_others_are_not_long() -> None:
    """Not so in the second round: the first one, from random weights, is not the usual."""
    gate = Gate(10.0, None, bounded=False, directed=False)
    along(gate, 8.0, 8.0, 8.0)
    assert list(along(gate, 1.0, 1.0, 70.0).dropped) == [2]
    along(gate, 1.0, 1.0, 1.0)
    verdict = along(gate, 0.02, 0.02, 0.02, 1.0, 9.0, 11.0)
    assert (steps(verdict), list(verdict.dropped)) == ([0.02, 0.02, 0.02, 1.0, 9.0], [5])


def test_a_majority_of_lengths_that_are_no_numbers_is_not_remembered() -> None:
    gate = Gate(10.0, None, bounded=False, directed=False)
    verdict = gate.check([update(0, 1.0), update(1, 1e30), update(2, 1e30)], GLOBAL, 7)
    assert sorted(verdict.dropped) == [1, 2]
    assert verdict.typical == pytest.approx(6**0.5)


def test_clipping_by_hand() -> None:
    """First round: median 2, so 3. Then the usual length is 2, the round's 1: the smaller counts. Then 2 and 8."""
    gate = Gate(10.0, 1.5, bounded=False, directed=False)
    assert steps(along(gate, 1.0, 2.0, 50.0)) == [1.0, 2.0, 3.0]
    assert steps(along(gate, 1.0, 1.0, 50.0)) == [1.0, 1.0, 1.5]
    verdict = along(gate, 8.0, 8.0, 1e6)
    assert steps(verdict) == [1.5, 1.5, 1.5], "usual: the lower of 2 and 1"
    assert (verdict.dropped, verdict.remarks[0].value) == ({}, 3)


def test_with_clipping_an_update_against_the_others_is_dropped() -> None:
    """Clipped it would still take its share of the step; without clipping, directions are not compared."""
    verdict = along(Gate(10.0, 1.0, bounded=False, directed=False), 1.0, 2.0, -9.0)
    assert (steps(verdict), verdict.dropped) == ([1.0, 2.0], {2: "points against 2 of the other 2"})
    assert steps(along(Gate(10.0, None, bounded=False, directed=False), 1.0, 2.0, -9.0)) == [1.0, 2.0, -9.0]


def test_the_lengths_of_five_rounds_are_remembered_and_a_round_that_moved_nothing_is_not() -> None:
    gate = Gate(10.0, None, bounded=False, directed=False)
    for step in (1.0, 2.0, 3.0, 0.0, 4.0, 5.0, 6.0):
        along(gate, step)
    kept = gate.state_dict()
    assert kept["lengths"].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0]
    resumed = Gate(10.0, None, bounded=False, directed=False)
    resumed.load_state_dict(kept)
    assert steps(along(resumed, 41.0)) == steps(along(gate, 41.0)) == [40.0]
    resumed.load_state_dict({})
    assert steps(along(resumed, 41.0)) == [41.0]


# directions


def test_screening_never_drops_more_than_half() -> None:
    """Three at 120 degrees: each points against both others. One too long and three of the rest against each other."""
    corners = torch.tensor([[1.0, 0.0], [-0.5, 0.866], [-0.5, -0.866]])
    zero = {"w": torch.zeros(2)}
    gate = Gate(10.0, None, bounded=False, directed=True)
    crowd = [Update(k, 7, {"w": corner}) for k, corner in enumerate(corners)]
    verdict = gate.check(crowd, zero, 7)
    assert (len(verdict.accepted), verdict.dropped) == (3, {})
    assert verdict.remarks == [
        (
            "screening_skipped",
            1,
            "3 of 3 updates point against more than half, but they are the majority: none is dropped for it",
        )
    ]
    verdict = gate.check([*crowd, Update(3, 7, {"w": torch.tensor([500.0, 0.0])})], zero, 7)
    assert list(verdict.dropped) == [3]
    assert verdict.remarks[0].name == "screening_skipped"


def test_screening_drops_nobody_where_those_left_would_still_point_against_each_other() -> None:
    """`test_outliers.py` says what these directions are."""
    directions = torch.tensor([0.0, 95.0, 50.0, -85.0, -85.0]).deg2rad()
    crowd = [Update(k, 7, {"w": torch.stack([angle.cos(), angle.sin()])}) for k, angle in enumerate(directions)]
    verdict = Gate(10.0, None, bounded=False, directed=True).check(crowd, {"w": torch.zeros(2)}, 7)
    assert (len(verdict.accepted), verdict.dropped) == (5, {})
    assert verdict.remarks[0].reason.startswith(
        "1 of 5 updates point against more than half, but the others do not agree"
    )


# the aggregate


def test_fedavg_is_the_mean_by_hand_and_keeps_dtypes() -> None:
    updates = [
        Update(0, 1, {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3), "h": torch.tensor([1.0]).half()}),
        Update(1, 1, {"w": torch.tensor([2.0, 4.0]), "n": torch.tensor(4), "h": torch.tensor([0.0]).half()}),
        Update(2, 1, {"w": torch.tensor([6.0, 9.0]), "n": torch.tensor(4), "h": torch.tensor([0.0]).half()}),
    ]
    mean = combined(fedavg(), updates, updates[0].shared)
    assert mean["w"].tolist() == [3.0, 5.0]
    assert (mean["n"].dtype, int(mean["n"])) == (torch.int64, 3)
    assert (mean["h"].dtype, float(mean["h"])) == (torch.float16, float(torch.tensor(1 / 3).half()))


def test_an_aggregate_that_is_no_model_is_named_by_its_tensor() -> None:
    assert unusable(GLOBAL) is None
    assert unusable(GLOBAL | {"w": torch.tensor([torch.inf])}) == "w holds a value that is not finite"
    assert (
        unusable(GLOBAL | {"bn.running_var": torch.tensor([1.0, -1e-9])}) == "bn.running_var holds a negative variance"
    )
