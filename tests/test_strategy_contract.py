"""What every yaml of conf/strategy keeps to, alone and in a run: contract, resume, refusals."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sofed_flwr.aggregators import differential_privacy
from sofed_flwr.aggregators.base import Aggregator
from sofed_flwr.assembly import build_device, build_server, check
from sofed_flwr.component import ConfigError, build
from sofed_flwr.config import compose
from sofed_flwr.contracts import State, Update
from sofed_flwr.run_config import RunConfig
from sofed_flwr.run_directory import Checkpoint
from sofed_flwr.server import RunStoppedError
from tests.conftest import SMOKE, conf_names, federate, rounds, same

Smoke = Callable[..., RunConfig]
STRATEGIES = conf_names("strategy")


@pytest.fixture(autouse=True)
def _noise_that_repeats_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Private noise comes from the system and never twice; here it does, so that all the rest can be compared."""
    monkeypatch.setattr(differential_privacy, "entropy", lambda: np.arange(624, dtype=np.uint32))


def strategy(name: str) -> Aggregator:
    aggregator: Aggregator = build(compose([f"strategy={name}"]).strategy, "strategy")
    return aggregator


def crowd_of(aggregator: Aggregator, seed: int = 0) -> list[Update]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Update(
            device,
            1,
            {
                "b.running_mean": torch.randn(3, generator=generator),
                "a.weight": torch.randn(2, 3, generator=generator),
                "a.half": torch.randn(2, generator=generator).half(),
                "scale": torch.randn((), generator=generator),
                "b.num_batches_tracked": torch.tensor(device),
            },
        )
        for device in range(max(aggregator.fewest, 4))
    ]


def zeros_like(state: State) -> State:
    return {name: torch.zeros_like(tensor) for name, tensor in state.items()}


@pytest.mark.parametrize("name", STRATEGIES)
def test_names_shapes_and_dtypes_stay_and_no_input_is_touched(name: str) -> None:
    aggregator = strategy(name)
    crowd = crowd_of(aggregator)
    current = zeros_like(crowd[0].shared)
    before = [{key: tensor.clone() for key, tensor in update.shared.items()} for update in crowd]
    for _ in range(2):
        found = aggregator.aggregate(crowd, current)
        assert list(found) == list(current)
        for key, tensor in current.items():
            assert (found[key].shape, found[key].dtype) == (tensor.shape, tensor.dtype)
            assert torch.isfinite(found[key]).all()
    assert all(same(update.shared, kept) for update, kept in zip(crowd, before, strict=True))
    assert same(current, zeros_like(current))


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_it_remembers_is_all_it_remembers(name: str) -> None:
    first, second = strategy(name), strategy(name)
    crowd = crowd_of(first)
    current = first.aggregate(crowd, zeros_like(crowd[0].shared))
    kept = first.state_dict()
    copy = {key: tensor.clone() for key, tensor in kept.items()}
    following = first.aggregate(crowd_of(first, seed=1), current)
    assert same(kept, copy), "a checkpoint does not change under the writer's hands"
    second.load_state_dict(copy)
    assert same(second.aggregate(crowd_of(first, seed=1), current), following)
    assert same(second.state_dict(), first.state_dict())


@pytest.mark.parametrize("name", STRATEGIES)
def test_flower_is_not_heard(name: str, caplog: pytest.LogCaptureFixture) -> None:
    aggregator = strategy(name)
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.addHandler(caplog.handler)
    try:
        aggregator.aggregate(crowd_of(aggregator), zeros_like(crowd_of(aggregator)[0].shared))
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records
    assert logger.level == level


# in a run


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_resumed_run_equals_an_uninterrupted_one(smoke: Smoke, name: str) -> None:
    size = [f"strategy={name}", f"clients={max(2, strategy(name).fewest)}", "rounds=2", "evaluation.every=2"]
    whole = federate(smoke(*size, out="whole"))
    config = smoke(*size, out="broken")
    federate(config, upto=1)
    resumed = build_server(compose([f"resume={config.out}"]))
    rounds(resumed, config, upto=2)
    assert same(resumed.shared, whole.shared)
    assert same(resumed.aggregator.state_dict(), whole.aggregator.state_dict())
    assert all(torch.isfinite(tensor).all() for tensor in whole.shared.values())


def test_a_checkpoint_from_before_aggregators_had_a_memory_is_their_first_start(smoke: Smoke) -> None:
    config = smoke("strategy=fedadam")
    server = federate(config, upto=1)
    assert int(server.aggregator.state_dict()["step"]) == 1
    server.directory.commit(Checkpoint(server.run, 1, server.shared))
    resumed = build_server(compose([f"resume={config.out}"]))
    assert same(resumed.shared, server.shared)
    assert same(resumed.aggregator.state_dict(), {"step": torch.tensor(0)})


def test_a_failed_round_is_no_step(smoke: Smoke) -> None:
    server = federate(smoke("strategy=fedavgm", "federation.quorum=2"), upto=1)
    before, shared = server.aggregator.state_dict(), server.shared
    server.aggregate(2, [], {0: "ran out of battery", 1: "ran out of battery"})
    assert same(server.aggregator.state_dict(), before)
    assert same(server.shared, shared)


def test_with_fewer_replies_than_the_strategy_needs_the_round_fails_whatever_the_quorum(smoke: Smoke) -> None:
    config = smoke("strategy=krum", "clients=3", "federation.quorum=1", "federation.patience=2")
    server = build_server(config)
    before = server.shared
    two = [build_device(config, server.run, k).train_round(1, server.shared) for k in (0, 1)]
    server.aggregate(1, two, {2: "ran out of battery"})
    assert same(server.shared, before)
    with pytest.raises(RunStoppedError, match="had 0 usable replies of 3 needed"):
        server.aggregate(2, [], {})


REFUSED = {
    "strategy=krum": "clients=2: strategy=krum needs at least 3 for strategy.malicious=0",
    "strategy=krum strategy.malicious=2": "clients=2: strategy=krum needs at least 7 for strategy.malicious=2",
    "strategy=multikrum strategy.select=4 clients=5": (
        "clients=5: strategy=multikrum needs at least 6 for strategy.malicious=0, strategy.select=4"
    ),
    "strategy=bulyan clients=6": "clients=6: strategy=bulyan needs at least 7 for strategy.malicious=1",
    "strategy=fedmedian": "clients=2: strategy=fedmedian needs at least 3 for strategy.screened=True",
    "strategy=fedtrimmedavg strategy.trim=0.2 clients=4": (
        "clients=4: strategy=fedtrimmedavg needs at least 5 for strategy.trim=0.2"
    ),
    "strategy=fedtrimmedavg strategy.trim=0.5": "strategy.trim=0.5: input should be less than 0.5",
    "strategy=fedtrimmedavg strategy.trim=0": "strategy.trim=0: input should be greater than 0",
    "strategy=krum strategy.malicious=-1": "strategy.malicious=-1: input should be greater than or equal to 0",
    "strategy=bulyan strategy.malicious=0": "strategy.malicious=0: input should be greater than or equal to 1",
    "strategy=fedadam strategy.lr=0": "strategy.lr=0: input should be greater than 0",
    "strategy=fedavgm strategy.momentum=1": "strategy.momentum=1: input should be less than 1",
    "strategy=fedavgm +strategy.tau=1": "strategy.tau=1: there is no such key; strategy has lr, momentum",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_what_cannot_work_is_refused_in_one_sentence(overrides: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        check(compose([*SMOKE, f"out={tmp_path}", *overrides.split()]))
    assert str(refusal.value) == REFUSED[overrides]
