"""A bad reply is dropped alone and by name; the rest is a plain mean."""

import pytest
import torch
from torch import Tensor

from sofed_flwr.aggregators.fedavg import FedAvg
from sofed_flwr.contracts import State, Update
from sofed_flwr.gate import pass_gate

GLOBAL = {"w": torch.zeros(2, 3), "steps": torch.tensor(4)}


def update(device: int, value: float = 1.0, **changed: Tensor) -> Update:
    return Update(device, 7, {"w": torch.full((2, 3), value), "steps": torch.tensor(5), **changed})


def without(name: str) -> State:
    return {key: tensor for key, tensor in update(0).shared.items() if key != name}


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
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_reply_drops_only_itself(kind: str) -> None:
    bad, reason = MALFORMED[kind]
    accepted, dropped, _ = pass_gate([update(2), bad, update(1)], GLOBAL, 7, norm_limit=10, directed=False)
    assert [good.device for good in accepted] == [1, 2]
    assert list(dropped) == [0]
    with pytest.raises(ValueError, match=reason):
        raise ValueError(dropped[0])


def test_a_reply_a_million_times_too_long_is_dropped_among_three_or_more() -> None:
    crowd = [update(0, 1.0), update(1, 1.2), update(2, 1e6)]
    accepted, dropped, _ = pass_gate(crowd, GLOBAL, 7, norm_limit=10, directed=False)
    assert [good.device for good in accepted] == [0, 1]
    assert "over 10 times the median" in dropped[2]
    assert pass_gate(crowd[1:], GLOBAL, 7, norm_limit=10, directed=False).dropped == {}


def test_finite_values_whose_squares_are_not_are_an_outlier_and_no_excuse() -> None:
    crowd = [update(0, 1.0), update(1, 1.2), update(2, 1e30)]
    accepted, dropped, _ = pass_gate(crowd, GLOBAL, 7, norm_limit=10, directed=False)
    assert [good.device for good in accepted] == [0, 1]
    assert dropped[2].startswith("moved the model by inf, over 10 times the median")


def test_fedavg_is_the_mean_by_hand_and_keeps_dtypes() -> None:
    updates = [
        Update(0, 1, {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3), "h": torch.tensor([1.0]).half()}),
        Update(1, 1, {"w": torch.tensor([2.0, 4.0]), "n": torch.tensor(4), "h": torch.tensor([0.0]).half()}),
        Update(2, 1, {"w": torch.tensor([6.0, 9.0]), "n": torch.tensor(4), "h": torch.tensor([0.0]).half()}),
    ]
    mean = FedAvg().aggregate(updates, updates[0].shared)
    assert mean["w"].tolist() == [3.0, 5.0]
    assert (mean["n"].dtype, int(mean["n"])) == (torch.int64, 3)
    assert (mean["h"].dtype, float(mean["h"])) == (torch.float16, float(torch.tensor(1 / 3).half()))
