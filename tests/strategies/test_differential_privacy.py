"""Flower's fixed clipping behind our gate: clip, noise, what stays outside, and the budget over resumes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.supercore.privacy_accounting import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, SamplingMethod
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

from sofed_flwr.build import build_server, check
from sofed_flwr.config.compose import compose
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import State, Update
from sofed_flwr.core.state_dicts import mean
from sofed_flwr.server.rounds import RunStoppedError
from sofed_flwr.server.summary import summarise
from sofed_flwr.storage.metrics_log import read_rows
from sofed_flwr.strategies.differential_privacy import FixedClipping
from tests.support.federation import SMOKE, rounds, same
from tests.support.replies import aggregate, combined

Smoke = Callable[..., RunConfig]
QUIET = 1e-9


def clipping(noise: float = 1.0, norm: float = 1.0, clients: int = 2, budget: float | None = None) -> FixedClipping:
    return FixedClipping(noise_multiplier=noise, clipping_norm=norm, delta=1e-5, max_epsilon=budget, clients=clients)


def updates(*states: State) -> list[Update]:
    return [Update(device, 1, state) for device, state in enumerate(states)]


def epsilon(releases: int, noise: float = 1.0) -> float:
    """The accountant's own."""
    accountant = RdpAccountant(
        PrivacyConfig(1e-5, 10, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    )
    accountant.compose(GaussianPrivacyEvent(noise, 10, 10), releases)
    return accountant.get_privacy_spent().epsilon


def test_a_long_update_is_cut_to_the_norm_as_a_whole_and_a_short_one_is_not() -> None:
    """Moved by 3 and, the scalar, by 4: length 5, cut to 0.6 and 0.8. Moved by 0.3 and 0.4: not cut. Then the mean."""
    current = {"w": torch.ones(2), "scale": torch.tensor(1.0)}
    long = {"w": torch.tensor([4.0, 1.0]), "scale": torch.tensor(5.0)}
    short = {"w": torch.tensor([1.3, 1.0]), "scale": torch.tensor(1.4)}
    found = combined(clipping(noise=QUIET), updates(long, short), current)
    torch.testing.assert_close(found["w"], torch.tensor([1 + (0.6 + 0.3) / 2, 1.0]))
    torch.testing.assert_close(found["scale"], torch.tensor(1 + (0.8 + 0.4) / 2))


@pytest.mark.parametrize("replies", [4, 6])
def test_the_noise_is_that_of_the_mean_over_those_who_replied(replies: int) -> None:
    current = {"w": torch.zeros(500, 400), "b": torch.zeros(100_000)}
    found = combined(clipping(noise=1.5, norm=2.0, clients=4), updates(*[current] * replies), current)
    for tensor in found.values():
        assert float(tensor.std()) == pytest.approx(1.5 * 2.0 / replies, rel=0.02)
        assert abs(float(tensor.mean())) < 0.01


def test_statistics_and_counters_are_the_plain_mean_to_the_bit() -> None:
    current = {"w": torch.zeros(3), "bn.running_mean": torch.zeros(2), "bn.running_var": torch.ones(2)}
    current |= {"bn.num_batches_tracked": torch.tensor(0)}
    generator = torch.Generator().manual_seed(0)
    crowd = updates(
        *(
            {n: torch.rand(t.shape, generator=generator).add(1e-3).to(t.dtype) for n, t in current.items()}
            for _ in range(3)
        )
    )
    for device, update in enumerate(crowd):
        update.shared["bn.num_batches_tracked"] = torch.tensor(7 + device)
    found = combined(clipping(noise=100.0), crowd, current)
    outside = [name for name in current if name.startswith("bn.")]
    assert same({name: found[name] for name in outside}, mean(crowd, outside))
    assert found["bn.num_batches_tracked"].dtype == torch.int64
    assert (found["bn.running_var"] > 0).all()


def test_a_device_that_did_not_move_does_not_stop_the_round() -> None:
    """Flower divides by the length of its update, which is 0."""
    current = {"w": torch.tensor([0.0, 3.0])}
    found = combined(clipping(noise=QUIET), updates(current, {"w": torch.tensor([0.5, 3.0])}), current)
    torch.testing.assert_close(found["w"], torch.tensor([0.25, 3.0]))


def test_noise_comes_from_the_system_and_leaves_the_global_generator_alone() -> None:
    current = {"w": torch.zeros(10)}
    np.random.seed(7)
    before = np.random.get_state()
    first = combined(clipping(), updates(current, current), current)
    assert all(np.array_equal(a, b) for a, b in zip(before, np.random.get_state(), strict=True))
    second = combined(clipping(), updates(current, current), current)
    assert not same(first, second)


def test_the_budget_is_the_accountants_and_grows_over_a_resume(smoke: Smoke) -> None:
    config = smoke("strategy=dp_fixed", "rounds=3", "evaluation.every=3")
    server = build_server(config)
    rounds(server, config, upto=2)
    resumed = build_server(compose([f"resume={config.out}"]))
    rounds(resumed, config, upto=3)
    rows = read_rows(resumed.directory.log.path)
    assert [row["value"] for row in rows if row["name"] == "epsilon"] == [epsilon(n) for n in (1, 2, 3)]
    summary = summarise(rows, {})
    assert (summary["epsilon"], summary["delta"]) == (epsilon(3), 1e-5)


def test_a_failed_round_releases_nothing_and_costs_nothing(smoke: Smoke) -> None:
    server = build_server(smoke("strategy=dp_fixed", "clients=3"))
    before = server.shared
    aggregate(server, 1, updates(before, before), {2: "ran out of battery"})
    assert same(server.shared, before)
    assert server.directory.ledger.releases == []


def test_an_exhausted_budget_stops_the_run_after_the_commit_and_stays_exhausted(smoke: Smoke) -> None:
    assert epsilon(2) < 7.5 < epsilon(3)
    config = smoke("strategy=dp_fixed", "strategy.max_epsilon=7.5", "rounds=9", "evaluation.every=9")
    server = build_server(config)
    with pytest.raises(RunStoppedError, match=r"after round 2: epsilon is 7\.077 of 7\.5 after 2 releases.*rounds=2"):
        rounds(server, config, upto=9)
    assert server.committed == 2
    resumed = build_server(compose([f"resume={config.out}"]))
    with pytest.raises(RunStoppedError, match=r"epsilon is 7\.077 of 7\.5"):
        resumed.close_round(2)
    kept = build_server(compose([f"resume={config.out}", "rounds=2"]))
    assert kept.close_round(2) == {}
    assert same(kept.shared, server.shared)


REFUSED = {
    "strategy.noise_multiplier=0": "strategy.noise_multiplier=0: input should be greater than 0",
    "strategy.clipping_norm=inf": "strategy.clipping_norm=inf: input should be a finite number",
    "strategy.delta=0.5": "strategy.delta=0.5: with 2 devices, revealing one of them fully is a delta of 1/2",
    "strategy.max_epsilon=3": (
        "strategy.max_epsilon=3: epsilon is 0 of 3 after 0 releases, one more would make it 4.729 at delta 1e-05"
    ),
    "strategy.clients=5": (
        "clients=2: strategy=dp_fixed needs at least 5 for strategy.noise_multiplier=1.0, strategy.clipping_norm=1.0, "
        "strategy.delta=1e-05, strategy.max_epsilon=None, strategy.clients=5"
    ),
}


@pytest.mark.parametrize("override", REFUSED)
def test_what_cannot_be_private_is_refused_in_one_sentence(override: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        check(compose([*SMOKE, "strategy=dp_fixed", f"out={tmp_path}", override]))
    assert str(refusal.value) == REFUSED[override]


def test_no_device_decides_who_else_is_dropped(smoke: Smoke) -> None:
    """The gate would drop what is 10 times the median; a clip makes that needless, and the guarantee forbids it."""
    server = build_server(smoke("strategy=dp_fixed", "clients=3"))
    far = {name: tensor + 100 if tensor.is_floating_point() else tensor for name, tensor in server.shared.items()}
    aggregate(server, 1, updates(server.shared, server.shared, far), {})
    assert not [row for row in read_rows(server.directory.log.path) if row["name"] == "dropped"]
