"""One device attacks (fault 13), with a flipped update or one a million times too long: who is left out, what stays."""

from collections.abc import Callable
from itertools import combinations

import pytest
import torch

from sofed_flwr.aggregators.fedavg import FedAvg
from sofed_flwr.aggregators.robust import FedMedian
from sofed_flwr.assembly import build_device, build_server
from sofed_flwr.contracts import State, Update
from sofed_flwr.gate import pass_gate
from sofed_flwr.run_config import RunConfig
from sofed_flwr.runlog import read_rows
from tests.conftest import same
from tests.test_update_faults import dropped, step

Smoke = Callable[..., RunConfig]
Attack = Callable[[State, State], State]


def million(shared: State, current: State) -> State:
    return {name: current[name] + 1_000_000 * (tensor - current[name]) for name, tensor in shared.items()}


def flipped(shared: State, current: State) -> State:
    return {name: current[name] - (tensor - current[name]) for name, tensor in shared.items()}


def attacked(update: Update, current: State, attack: Attack) -> Update:
    return Update(update.device, update.round, attack(update.shared, current), update.metrics)


ATTACKS = (million, flipped)
ROBUST = {
    "fedmedian": ["strategy=fedmedian"],
    "multikrum": ["strategy=multikrum", "strategy.malicious=1", "strategy.select=2"],
}


def test_an_update_a_million_times_too_long_is_dropped_by_the_gate_before_a_mean(smoke: Smoke) -> None:
    server = build_server(smoke("clients=5"))
    crowd = [step(server.shared, device, 1) for device in range(5)]
    others = build_server(smoke("clients=5", out="others"))
    others.aggregate(1, crowd[:4], {})
    server.aggregate(1, [*crowd[:4], attacked(crowd[4], server.shared, million)], {})
    assert same(server.shared, others.shared)
    assert [(number, device) for number, device, _ in dropped(server)] == [(1, 4)]


@pytest.mark.parametrize("clients", [3, 5])
@pytest.mark.parametrize("attack", ATTACKS)
def test_beside_an_attacker_fedmedian_is_the_median_of_the_others(smoke: Smoke, attack: Attack, clients: int) -> None:
    """To the last bit, in every round, and of three, too; the diary names the attacker."""
    size = ["strategy=fedmedian", f"clients={clients}", "rounds=3", "evaluation=none"]
    server = build_server(smoke(*size))
    for number in range(1, 4):
        crowd = [step(server.shared, device, number) for device in range(clients)]
        expected = FedMedian(screened=True).aggregate(crowd[1:], server.shared)
        server.aggregate(number, [attacked(crowd[0], server.shared, attack), *crowd[1:]], {})
        assert same(server.shared, expected)
    assert [(number, device) for number, device, _ in dropped(server)] == [(1, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize("attack", ATTACKS)
def test_multikrum_does_not_choose_the_attacker(smoke: Smoke, attack: Attack) -> None:
    server = build_server(smoke("clients=5", *ROBUST["multikrum"]))
    crowd = [step(server.shared, device, 1) for device in range(5)]
    chosen = {
        pair: FedAvg().aggregate([crowd[device] for device in pair], server.shared)
        for pair in combinations(range(1, 5), 2)
    }
    server.aggregate(1, [attacked(crowd[0], server.shared, attack), *crowd[1:]], {})
    near = [pair for pair, state in chosen.items() if close(server.shared, state)]
    assert len(near) == 1


def close(one: State, other: State) -> bool:
    """Equal but for rounding: robust strategies compute in float64."""
    return all(torch.allclose(tensor.float(), other[name].float(), atol=1e-6) for name, tensor in one.items())


def test_devices_that_saw_other_classes_are_not_taken_for_attackers(smoke: Smoke) -> None:
    """Real training, two classes per device; of the same replies with one flipped, that one alone is dropped."""
    config = smoke("strategy=fedmedian", "clients=5", "partition=by_class", "dataset.train=400", "evaluation=none")
    server = build_server(config)
    for number in (1, 2):
        crowd = [build_device(config, server.run, device).train_round(number, server.shared) for device in range(5)]
        for liar in range(5):
            mixed = [attacked(u, server.shared, flipped) if u.device == liar else u for u in crowd]
            assert list(pass_gate(mixed, server.shared, number, 10.0, directed=True).dropped) == [liar]
        server.aggregate(number, crowd, {})
    assert not dropped(server)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("strategy", [[*ROBUST["fedmedian"], "strategy.screened=false"], ROBUST["multikrum"]])
def test_one_attacker_of_five_does_not_turn_a_strategy_that_bears_it(
    smoke: Smoke, strategy: list[str], attack: Attack
) -> None:
    """A flipped update is as long as an honest one, so no length gives it away; the plain mean moves 3/5 of the way."""

    def moved(*overrides: str, liar: bool) -> torch.Tensor:
        server = build_server(
            smoke("clients=5", *overrides, out="-".join(["run", *overrides, str(liar)]).replace("=", ""))
        )
        crowd = [step(server.shared, device, 1) for device in range(5)]
        before = server.shared
        server.aggregate(1, [attacked(crowd[0], before, attack) if liar else crowd[0], *crowd[1:]], {})
        assert not [row for row in read_rows(server.directory.log.path) if row["name"] in ("failed", "dropped")]
        return torch.cat([(server.shared[n] - t).flatten() for n, t in before.items() if t.is_floating_point()])

    clean = moved(liar=False)
    found = moved(*strategy, liar=True)
    assert float(torch.cosine_similarity(found, clean, dim=0)) > 0.85
    assert 0.8 < float(found.norm() / clean.norm()) < 1.3
    if attack is flipped:
        assert float(moved("strategy=fedavg", liar=True).norm() / clean.norm()) < 0.65
