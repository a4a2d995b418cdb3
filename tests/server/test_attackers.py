"""Malicious clients: turned back, far too long, or in agreement. Who is left out, what stays."""

from collections.abc import Callable
from itertools import combinations

import pytest
import torch

from sofed_flwr.build import build_device, build_server
from sofed_flwr.config.compose import compose
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.records import State, Update
from sofed_flwr.core.state_dicts import is_parameter
from sofed_flwr.server.gate import Gate
from sofed_flwr.server.rounds import Server
from sofed_flwr.storage.metrics_log import read_rows
from sofed_flwr.strategies.fedavg import fedavg
from sofed_flwr.strategies.robust import fedmedian
from tests.server.test_update_faults import dropped, step
from tests.support.federation import same
from tests.support.replies import aggregate, combined

Smoke = Callable[..., RunConfig]
Attack = Callable[[State, State], State]


def scaled(shared: State, current: State, factor: float) -> State:
    """What was learned, times a factor; statistics and counters stay, as false ones would be found by themselves."""
    return shared | {
        name: current[name] + factor * (tensor - current[name])
        for name, tensor in shared.items()
        if is_parameter(name, tensor)
    }


def million(shared: State, current: State) -> State:
    return scaled(shared, current, 1e6)


def flipped(shared: State, current: State) -> State:
    return scaled(shared, current, -1.0)


def backwards(shared: State, current: State) -> State:
    """Just below the limit of ten times the median."""
    return scaled(shared, current, -9.0)


def attacked(update: Update, current: State, attack: Attack) -> Update:
    return Update(update.device, update.round, attack(update.shared, current), update.metrics)


def alarms(server: Server, *names: str) -> list[tuple[str, int]]:
    return [(row["name"], row["round"]) for row in read_rows(server.directory.log.path) if row["name"] in names]


ATTACKS = (million, flipped)
ROBUST = {
    "fedmedian": ["strategy=fedmedian"],
    "multikrum": ["strategy=multikrum", "strategy.malicious=1", "strategy.select=2"],
}


def test_an_update_a_million_times_too_long_is_dropped_by_the_gate_before_a_mean(smoke: Smoke) -> None:
    server = build_server(smoke("clients=5"))
    crowd = [step(server.shared, device, 1) for device in range(5)]
    others = build_server(smoke("clients=5", out="others"))
    aggregate(others, 1, crowd[:4], {})
    aggregate(server, 1, [*crowd[:4], attacked(crowd[4], server.shared, million)], {})
    assert same(server.shared, others.shared)
    assert [(number, device) for number, device, _ in dropped(server)] == [(1, 4)]


@pytest.mark.parametrize("malicious", [1, 2, 3])
def test_half_of_an_even_number_cannot_disable_the_length_check(smoke: Smoke, malicious: int) -> None:
    server = build_server(smoke(f"clients={2 * malicious}"))
    crowd = [step(server.shared, device, 1) for device in range(2 * malicious)]
    long = [attacked(update, server.shared, million) for update in crowd[malicious:]]
    aggregate(server, 1, crowd[:malicious] + long, {})
    assert [device for _, device, _ in dropped(server)] == list(range(malicious, 2 * malicious))


# one of five, nine times as long as the others, backwards, in every round


def driven_back(server: Server, rounds: int) -> list[float]:
    """Honest devices' lengths per round, who all go the whole way to a goal that the malicious one drives them from."""
    names = [name for name, tensor in server.shared.items() if is_parameter(name, tensor)]
    goal = {name: server.shared[name] + 0.01 * torch.randn(server.shared[name].shape) for name in names}
    lengths = []
    for number in range(1, rounds + 1):
        way = {name: goal[name] - server.shared[name] for name in names}
        lengths.append(float(torch.cat([part.flatten() for part in way.values()]).norm()))
        crowd = [Update(k, number, server.shared | goal) for k in range(5)]
        aggregate(server, number, [*crowd[:4], attacked(crowd[4], server.shared, backwards)], {})
    return lengths


def test_a_malicious_client_just_below_the_limit_does_not_raise_it_with_the_honest_lengths(smoke: Smoke) -> None:
    """Unlimited, each round ends twice as far from the goal: (4 - 9) / 5 = -1. Against the last rounds' lengths growth
    settles where 1 + (10 / g^3 - 4) / 5 = g, at 1.24 per round, 88 after 19 rounds instead of 2^19. With clipping the
    malicious update is dropped for its direction, and the honest ones arrive.
    """
    torch.manual_seed(0)
    unlimited = driven_back(build_server(smoke("clients=5", "federation.max_norm_ratio=1e9", out="unlimited")), 7)
    assert unlimited[6] == pytest.approx(64 * unlimited[0], rel=1e-3)
    limited = driven_back(build_server(smoke("clients=5", out="limited")), 20)
    assert limited[10] < 15 * limited[0]
    assert limited[19] < 100 * limited[0]
    clipped = driven_back(build_server(smoke("clients=5", "federation.clip_norm_ratio=1", out="clipped")), 2)
    assert clipped[1] < 1e-4 * clipped[0]


def test_the_usual_length_survives_a_resume(smoke: Smoke) -> None:
    def later(config: RunConfig, rounds: range) -> Server:
        server = build_server(config)
        for number in rounds:
            size = 0.2 if number == 6 else 0.01
            aggregate(server, number, [step(server.shared, k, number, size) for k in range(3)], {})
            server.close_round(number)
        return server

    size = ["clients=3", "evaluation=none", "rounds=6"]
    whole = later(smoke(*size, out="whole"), range(1, 7))
    config = smoke(*size, out="broken")
    later(config, range(1, 6))
    resumed = later(compose([f"resume={config.out}"]), range(6, 7))
    assert same(resumed.shared, whole.shared)
    assert alarms(resumed, "clipped") == alarms(whole, "clipped") == [("clipped", 6)]


# directions


@pytest.mark.parametrize("clients", [3, 5])
@pytest.mark.parametrize("attack", ATTACKS)
def test_beside_an_attacker_fedmedian_is_the_median_of_the_others(smoke: Smoke, attack: Attack, clients: int) -> None:
    """To the last bit, in every round, and of three, too; the metrics log names the attacker."""
    size = ["strategy=fedmedian", f"clients={clients}", "rounds=3", "evaluation=none"]
    server = build_server(smoke(*size))
    for number in range(1, 4):
        crowd = [step(server.shared, device, number) for device in range(clients)]
        expected = combined(fedmedian(screened=True), crowd[1:], server.shared)
        aggregate(server, number, [attacked(crowd[0], server.shared, attack), *crowd[1:]], {})
        assert same(server.shared, expected)
    assert [(number, device) for number, device, _ in dropped(server)] == [(1, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize(("agreement", "seen"), [(1.0, True), (0.5, True), (0.1, False), (0.0, False)])
def test_two_identical_malicious_clients_of_five_have_no_honest_one_dropped(
    smoke: Smoke, agreement: float, seen: bool
) -> None:
    """Whatever the honest ones have in common is turned against them, 14 rounds; where that is next to nothing, nobody
    can be told from the others and it is the plain median.
    """
    server = build_server(smoke("strategy=fedmedian", "clients=5", "evaluation=none"))
    for number in range(1, 15):
        honest = [disagreeing(server.shared, device, number, agreement) for device in range(3)]
        against = attacked(Update(3, number, combined(fedavg(), honest, server.shared)), server.shared, flipped)
        crowd = [*honest, against, Update(4, number, against.shared)]
        expected = combined(fedmedian(screened=True), honest if seen else crowd, server.shared)
        aggregate(server, number, crowd, {})
        assert same(server.shared, expected)
    assert [device for _, device, _ in dropped(server)] == ([3, 4] * 14 if seen else [])
    assert len(alarms(server, "screening_skipped")) == (0 if seen else 14)
    assert alarms(server, "failed") == []


def disagreeing(shared: State, device: int, number: int, agreement: float) -> Update:
    """Cosine between two honest updates: agreement² / (1 + agreement²)."""
    common, own = (torch.Generator().manual_seed(seed) for seed in (number, 1000 * number + device))
    moved = {
        name: tensor
        + 0.01 * agreement * torch.randn(tensor.shape, generator=common)
        + 0.01 * torch.randn(tensor.shape, generator=own)
        for name, tensor in shared.items()
        if is_parameter(name, tensor)
    }
    return Update(device, number, shared | moved)


def test_where_all_disagree_screening_is_skipped_and_says_so(smoke: Smoke, caplog: pytest.LogCaptureFixture) -> None:
    """Without what they have in common, three updates are at 120 degrees to each other."""
    server = build_server(smoke("strategy=fedmedian", "clients=3", "evaluation=none"))
    own = [disagreeing(server.shared, device, 1, agreement=0.0) for device in range(3)]
    mean = combined(fedavg(), own, server.shared)
    apart = [
        Update(
            u.device,
            1,
            {n: t if t is server.shared[n] else t - mean[n] + server.shared[n] for n, t in u.shared.items()},
        )
        for u in own
    ]
    expected = combined(fedmedian(screened=True), apart, server.shared)
    aggregate(server, 1, apart, {})
    assert same(server.shared, expected)
    assert (dropped(server), alarms(server, "screening_skipped")) == ([], [("screening_skipped", 1)])
    assert "3 of 3 updates point against more than half" in caplog.text


@pytest.mark.parametrize("attack", ATTACKS)
def test_multikrum_does_not_choose_the_attacker(smoke: Smoke, attack: Attack) -> None:
    server = build_server(smoke("clients=5", *ROBUST["multikrum"]))
    crowd = [step(server.shared, device, 1) for device in range(5)]
    chosen = {
        pair: combined(fedavg(), [crowd[device] for device in pair], server.shared)
        for pair in combinations(range(1, 5), 2)
    }
    aggregate(server, 1, [attacked(crowd[0], server.shared, attack), *crowd[1:]], {})
    near = [pair for pair, state in chosen.items() if close(server.shared, state)]
    assert len(near) == 1


def close(one: State, other: State) -> bool:
    """Equal but for rounding: robust strategies compute in float64."""
    return all(torch.allclose(tensor.float(), other[name].float(), atol=1e-6) for name, tensor in one.items())


def test_devices_that_saw_other_classes_are_not_taken_for_attackers(smoke: Smoke) -> None:
    """Real training, two classes per device, in small steps, so that all agree (cosines of 0.1 and more); of the
    same replies with one flipped, that one alone is dropped.
    """
    size = ["clients=5", "dataset.train=400", "buffer=32", "stream.segments=4", "optimizer.lr=0.03", "evaluation=none"]
    config = smoke("strategy=fedmedian", "partition=by_class", "seed=1", *size)
    server = build_server(config)
    for number in (1, 2, 3):
        crowd = [build_device(config, server.run, device).train_round(number, server.shared) for device in range(5)]
        for malicious in range(5):
            mixed = [attacked(u, server.shared, flipped) if u.device == malicious else u for u in crowd]
            verdict = Gate(10.0, None, bounded=False, directed=True).check(mixed, server.shared, number)
            assert list(verdict.dropped) == [malicious]
        aggregate(server, number, crowd, {})
    assert not dropped(server)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("strategy", [[*ROBUST["fedmedian"], "strategy.screened=false"], ROBUST["multikrum"]])
def test_one_attacker_of_five_does_not_turn_a_strategy_that_bears_it(
    smoke: Smoke, strategy: list[str], attack: Attack
) -> None:
    """A flipped update is as long as an honest one, so no length gives it away; the plain mean moves 3/5 of the way."""

    def moved(*overrides: str, malicious: bool) -> torch.Tensor:
        server = build_server(
            smoke("clients=5", *overrides, out="-".join(["run", *overrides, str(malicious)]).replace("=", ""))
        )
        crowd = [step(server.shared, device, 1) for device in range(5)]
        before = server.shared
        aggregate(server, 1, [attacked(crowd[0], before, attack) if malicious else crowd[0], *crowd[1:]], {})
        assert not alarms(server, "failed", "dropped")
        return torch.cat([(server.shared[n] - t).flatten() for n, t in before.items() if is_parameter(n, t)])

    clean = moved(malicious=False)
    found = moved(*strategy, malicious=True)
    assert float(torch.cosine_similarity(found, clean, dim=0)) > 0.85
    assert 0.8 < float(found.norm() / clean.norm()) < 1.3
    if attack is flipped:
        assert float(moved("strategy=fedavg", malicious=True).norm() / clean.norm()) < 0.65
