"""What every yaml of conf/strategy keeps to, alone and in a run: contract, resume, refusals."""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sofed_flwr.build import build_device, build_server, check
from sofed_flwr.config.compose import compose
from sofed_flwr.config.instantiate import build
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import State, Update
from sofed_flwr.server.rounds import RunStoppedError, Server
from sofed_flwr.storage.metrics_log import read_rows
from sofed_flwr.storage.run_directory import Checkpoint
from sofed_flwr.strategies import differential_privacy
from sofed_flwr.strategies.inner import InnerStrategy
from tests.server.test_update_faults import step
from tests.support.federation import SMOKE, compose_once, conf_names, federate, same
from tests.support.replies import aggregate, combined

Smoke = Callable[..., RunConfig]
STRATEGIES = conf_names("strategy")


@pytest.fixture(autouse=True)
def _noise_that_repeats_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Private noise comes from the system and never twice; here it does, so that all the rest can be compared."""
    monkeypatch.setattr(differential_privacy, "entropy", lambda: np.arange(624, dtype=np.uint32))


def strategy(name: str) -> InnerStrategy:
    aggregator: InnerStrategy = build(compose_once(f"strategy={name}").strategy, "strategy")
    return aggregator


def crowd_of(aggregator: InnerStrategy, seed: int = 0) -> list[Update]:
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
        for device in range(max(aggregator.min_replies, 4))
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
        found = combined(aggregator, crowd, current)
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
    current = combined(first, crowd, zeros_like(crowd[0].shared))
    kept = first.state_dict()
    copy = {key: tensor.clone() for key, tensor in kept.items()}
    following = combined(first, crowd_of(first, seed=1), current)
    assert same(kept, copy), "a checkpoint does not change under the writer's hands"
    second.load_state_dict(copy)
    assert same(combined(second, crowd_of(first, seed=1), current), following)
    assert same(second.state_dict(), first.state_dict())


@pytest.mark.parametrize("name", STRATEGIES)
def test_flower_is_not_heard(name: str, caplog: pytest.LogCaptureFixture) -> None:
    aggregator = strategy(name)
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.addHandler(caplog.handler)
    try:
        combined(aggregator, crowd_of(aggregator), zeros_like(crowd_of(aggregator)[0].shared))
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records
    assert logger.level == level


# in a run


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_resumed_run_equals_an_uninterrupted_one(smoke: Smoke, name: str) -> None:
    clients = max(2, strategy(name).min_replies)

    def proceed(server: Server, number: int) -> None:
        aggregate(server, number, [step(server.shared, device, number) for device in range(clients)])
        server.close_round(number)

    size = [f"strategy={name}", f"clients={clients}", "rounds=2", "evaluation=none"]
    whole, config = build_server(smoke(*size, out="whole")), smoke(*size, out="broken")
    for server in (whole, build_server(config)):
        proceed(server, 1)
    resumed = build_server(compose([f"resume={config.out}"]))
    for server in (whole, resumed):
        proceed(server, 2)
    assert resumed.committed == 2
    assert same(resumed.shared, whole.shared)
    assert same(resumed.strategy.state_dict(), whole.strategy.state_dict())
    assert all(torch.isfinite(tensor).all() for tensor in whole.shared.values())


def test_a_checkpoint_without_the_memory_of_a_strategy_is_its_first_start(smoke: Smoke) -> None:
    config = smoke("strategy=fedadam")
    server = federate(config, upto=1)
    assert int(server.strategy.state_dict()["steps"]) == 1
    server.directory.commit(Checkpoint(server.run, 1, server.shared))
    resumed = build_server(compose([f"resume={config.out}"]))
    assert same(resumed.shared, server.shared)
    assert same(resumed.strategy.state_dict(), {"steps": torch.tensor(0)})


def test_a_failed_round_is_no_step(smoke: Smoke) -> None:
    server = federate(smoke("strategy=fedavgm", "federation.quorum=2"), upto=1)
    before, shared = server.strategy.state_dict(), server.shared
    aggregate(server, 2, [], {0: "ran out of battery", 1: "ran out of battery"})
    assert same(server.strategy.state_dict(), before)
    assert same(server.shared, shared)


def test_with_fewer_replies_than_the_strategy_needs_the_round_fails_whatever_the_quorum(smoke: Smoke) -> None:
    config = smoke("strategy=krum", "clients=3", "federation.quorum=1", "federation.max_failed_rounds=2")
    server = build_server(config)
    before = server.shared
    two = [build_device(config, server.run, k).train_round(1, server.shared) for k in (0, 1)]
    aggregate(server, 1, two, {2: "ran out of battery"})
    assert same(server.shared, before)
    with pytest.raises(RunStoppedError, match="had 0 usable replies of 3 needed"):
        aggregate(server, 2, [], {})


@pytest.mark.parametrize("replies", [0, 1, 2])
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_round_with_too_few_replies_is_a_failed_round_and_nothing_else(smoke: Smoke, name: str, replies: int) -> None:
    fewest = strategy(name).min_replies
    server = build_server(smoke(f"strategy={name}", f"clients={max(2, fewest)}", "evaluation=none"))
    before = server.shared
    aggregate(server, 1, [step(before, device, 1) for device in range(replies)], {9: "ran out of battery"})
    failed = [row["reason"] for row in read_rows(server.directory.log.path) if row["name"] == "failed"]
    if replies < server.quorum:
        assert failed == [f"had {replies} usable replies of {server.quorum} needed (device 9: ran out of battery)"]
        assert same(server.shared, before)
    else:
        assert not failed
        assert not same(server.shared, before)
    server.close_round(1)
    assert server.committed == 1


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
    "strategy=krum clients=3 federation.clip_norm_ratio=1": (
        "federation.clip_norm_ratio=1: strategy=krum bounds updates by itself"
    ),
    "federation.clip_norm_ratio=0": "federation.clip_norm_ratio=0: input should be greater than 0",
    "federation.clip_norm_ratio=inf": "federation.clip_norm_ratio=inf: input should be a finite number",
    "federation.max_norm_ratio=nan": "federation.max_norm_ratio=nan: input should be a finite number",
    "strategy=fedavgm strategy.momentum=1": "strategy.momentum=1: input should be less than 1",
    "strategy=fedavgm +strategy.tau=1": "strategy.tau=1: there is no such key; strategy has lr, momentum",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_what_cannot_work_is_refused_in_one_sentence(overrides: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        check(compose([*SMOKE, f"out={tmp_path}", *overrides.split()]))
    assert str(refusal.value) == REFUSED[overrides]
