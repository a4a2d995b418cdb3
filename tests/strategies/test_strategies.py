"""Flower's strategies behind our gate: numbers by hand, malicious clients, counters and statistics."""

import numpy as np
import pytest
import torch

from sofed_flwr.core.records import State, Update
from sofed_flwr.strategies.fedavg import fedavg
from sofed_flwr.strategies.inner import InnerStrategy
from sofed_flwr.strategies.robust import bulyan, fedmedian, fedtrimmedavg, krum, multikrum
from sofed_flwr.strategies.server_optimizers import fedadam, fedavgm, fedyogi
from tests.support.federation import same
from tests.support.replies import combined

ZERO = {"w": torch.zeros(2)}


def updates(*values: list[float], **more: list[float]) -> list[Update]:
    """One update per value; `more` holds one number per device for another tensor."""
    return [
        Update(device, 1, {"w": torch.tensor(value)} | {n: torch.tensor(many[device]) for n, many in more.items()})
        for device, value in enumerate(values)
    ]


def result(aggregator: InnerStrategy, *values: list[float], current: State = ZERO) -> list[float]:
    return [round(value, 6) for value in combined(aggregator, updates(*values), current)["w"].tolist()]


# by hand


def test_fedavgm_adds_half_of_the_last_step() -> None:
    aggregator = fedavgm(lr=1.0, momentum=0.5)
    # mean (2, 4): m = -(2, 4), W = (2, 4)
    assert result(aggregator, [1.0, 4.0], [3.0, 4.0]) == [2, 4]
    # mean (3, 4): m = -(2, 4) / 2 - (1, 0) = -(2, 2), W = (2, 4) + (2, 2)
    assert result(aggregator, [3.0, 4.0], [3.0, 4.0], current={"w": torch.tensor([2.0, 4.0])}) == [4, 6]


def test_fedavgm_scales_the_step_by_lr() -> None:
    assert result(fedavgm(lr=0.5, momentum=0.0), [2.0, -4.0], [2.0, -4.0]) == [1, -2]


def test_fedadam_takes_two_steps_by_the_formula() -> None:
    """Δ = (1, -2) then (1, 0), lr 0.1, beta 0.9 and 0.99, tau 0.001; Flower corrects step t as if it were t + 1."""
    aggregator = fedadam(lr=0.1, beta_1=0.9, beta_2=0.99, tau=0.001)
    rate = 0.1 * (1 - 0.99**2) ** 0.5 / (1 - 0.9**2)
    first = [rate * 0.1 / (0.1 + 0.001), rate * -0.2 / (0.2 + 0.001)]
    assert result(aggregator, [0.0, -2.0], [2.0, -2.0]) == [round(value, 6) for value in first]

    rate = 0.1 * (1 - 0.99**3) ** 0.5 / (1 - 0.9**3)
    m, v = [0.9 * 0.1 + 0.1, 0.9 * -0.2], [0.99 * 0.01 + 0.01, 0.99 * 0.04]
    assert result(aggregator, [1.0, 0.0]) == [round(rate * m[i] / (v[i] ** 0.5 + 0.001), 6) for i in (0, 1)]


def test_fedyogi_takes_one_step_by_the_formula() -> None:
    expected = [0.1 * 0.1 / (0.1 + 0.001), 0.1 * -0.2 / (0.2 + 0.001)]
    aggregator = fedyogi(lr=0.1, beta_1=0.9, beta_2=0.99, tau=0.001)
    assert result(aggregator, [0.0, -2.0], [2.0, -2.0]) == [round(value, 6) for value in expected]


def test_the_median_is_taken_coordinate_by_coordinate() -> None:
    assert result(fedmedian(screened=True), [1.0, 9.0], [2.0, 5.0], [7.0, 6.0]) == [2, 6]
    assert result(fedmedian(screened=True), [1.0, 9.0], [2.0, 5.0], [7.0, 6.0], [4.0, 0.0]) == [3, 5.5]


def test_the_trimmed_mean_leaves_out_one_of_four_at_each_end() -> None:
    assert result(fedtrimmedavg(trim=0.25), [1.0, 9.0], [2.0, 5.0], [7.0, 6.0], [4.0, 0.0]) == [3, 5.5]


@pytest.mark.parametrize("trim", [0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.33, 0.4, 0.45, 0.49])
def test_the_fewest_of_a_trimmed_mean_are_the_fewest_of_which_one_is_trimmed(trim: float) -> None:
    fewest = fedtrimmedavg(trim=trim).min_replies
    assert (int(trim * fewest), int(trim * (fewest - 1))) == (1, 0)


LINE = ([0.0, 0.0], [1.0, 0.0], [3.0, 0.0], [7.0, 0.0], [90.0, 90.0])
"""One malicious, four on a line; with f = 1 two neighbours count. Squared: 1+9=10, 1+4=5, 4+9=13, 16+36=52, many."""


def test_krum_takes_the_device_with_the_nearest_neighbours_whole() -> None:
    counted = updates(*LINE, n=[10, 11, 12, 13, 99])
    chosen = combined(krum(malicious=1), counted, ZERO | {"n": torch.tensor(0)})
    assert same(chosen, counted[1].shared)


def test_multikrum_averages_the_two_best_and_their_counters() -> None:
    counted = updates(*LINE, n=[10, 12, 12, 13, 99])
    chosen = combined(multikrum(malicious=1, select=2), counted, ZERO | {"n": torch.tensor(0)})
    assert (chosen["w"].tolist(), int(chosen["n"])) == ([0.5, 0.0], 11)


def test_krum_compares_parameters_and_takes_the_statistics_of_those_it_chose() -> None:
    """By statistics as well, the malicious one and the fourth would be the nearest by far."""
    measured = updates(*LINE, **{"bn.running_var": [900.0, 100.0, 1500.0, 500.0, 500.0]})
    current = ZERO | {"bn.running_var": torch.tensor(1.0)}
    assert same(combined(krum(malicious=1), measured, current), measured[1].shared)
    two = combined(multikrum(malicious=1, select=2), measured, current)
    assert (two["w"].tolist(), float(two["bn.running_var"])) == ([0.5, 0.0], 500.0)


def test_krum_sees_short_steps_of_a_large_model() -> None:
    """In float32, |x|² = 2e6 drowns distances of 1e-4. Three neighbours count: 21, 11, 9, 29, 136 times 1e-4."""
    crowd = updates(*([1000.0 + step, 1000.0] for step in (0.0, 0.01, 0.02, 0.04, 0.08)))
    assert same(combined(krum(malicious=0), crowd, ZERO), crowd[2].shared)


def naive_bulyan(vectors: np.ndarray, f: int) -> list[float]:
    count = len(vectors)
    scores = []
    for one in vectors:
        distances = sorted(float(((one - other) ** 2).sum()) for other in vectors)
        scores.append(sum(distances[1 : count - f - 1]))
    best = vectors[np.argsort(scores)[: count - 2 * f]]
    expected = []
    for column in best.T:
        middle = float(np.median(column))
        nearest = sorted(column.tolist(), key=lambda value: abs(value - middle))[: count - 4 * f]
        expected.append(sum(nearest) / len(nearest))
    return expected


def test_bulyan_equals_a_naive_loop() -> None:
    vectors = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
    vectors[3] = 40
    found = combined(bulyan(malicious=1), updates(*vectors.tolist()), {"w": torch.zeros(5)})["w"]
    np.testing.assert_allclose(found.numpy(), naive_bulyan(vectors, f=1), rtol=1e-6)


# malicious clients


HONEST = [[1.0, -1.0], [1.1, -0.9], [0.9, -1.1], [1.0, -0.9], [1.1, -1.0], [0.9, -1.0]]
GUARDS = {
    "krum": krum(malicious=1),
    "multikrum": multikrum(malicious=1, select=4),
    "fedmedian": fedmedian(screened=True),
    "fedtrimmedavg": fedtrimmedavg(trim=0.25),
    "bulyan": bulyan(malicious=1),
}


@pytest.mark.parametrize("name", GUARDS)
@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_malicious_client_among_six_honest_devices_has_no_effect(name: str, place: int) -> None:
    crowd = [*HONEST[:place], [-50.0, 80.0], *HONEST[place:]]
    assert max(map(abs, result(fedavg(), *crowd))) > 5
    found = result(GUARDS[name], *crowd)
    assert 0.9 <= found[0] <= 1.1
    assert -1.1 <= found[1] <= -0.9


@pytest.mark.parametrize("name", ["fedmedian", "fedtrimmedavg", "bulyan"])
def test_a_lie_in_the_statistics_alone_is_trimmed_too(name: str) -> None:
    variances = [1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 1e6]
    crowd = updates(*HONEST, [1.0, -1.0], **{"bn.running_var": variances})
    found = combined(GUARDS[name], crowd, ZERO | {"bn.running_var": torch.tensor(1.0)})
    assert 0.9 <= float(found["bn.running_var"]) <= 1.1


@pytest.mark.parametrize("name", GUARDS)
def test_who_is_first_does_not_matter(name: str) -> None:
    crowd = [*HONEST[:4], [7.0, 5.0], [0.0, 0.1], [2.0, 2.0]]
    forward, backward = result(GUARDS[name], *crowd), result(GUARDS[name], *reversed(crowd))
    assert forward == backward


# statistics and counters


@pytest.mark.parametrize(
    "aggregator",
    [fedavgm(lr=1.0, momentum=0.9), fedadam(0.01, 0.9, 0.99, 1e-3), fedyogi(0.01, 0.9, 0.99, 1e-3)],
    ids=lambda aggregator: type(aggregator).__name__,
)
def test_server_optimizers_leave_statistics_and_counters_to_the_mean(aggregator: InnerStrategy) -> None:
    """A variance that falls from 1 to 0.2 to 0.1: momentum on it would say 0.1 - 0.9 * 0.8 = -0.62."""
    current = ZERO | {"bn.running_var": torch.tensor(1.0), "n": torch.tensor(0)}
    for expected in (0.2, 0.1):
        crowd = updates([1.0, 1.0], [1.0, 1.0], n=[4, 5], **{"bn.running_var": [expected, expected]})
        current = combined(aggregator, crowd, current)
        assert float(current["bn.running_var"]) == pytest.approx(expected)
        assert int(current["n"]) == 4
