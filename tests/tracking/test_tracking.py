"""Trackers follow the metrics log: the same numbers under the same rounds, each once, and nothing else changes."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sofed_flwr.build import build_server, check
from sofed_flwr.config.compose import compose
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.storage.metrics_log import read_rows
from tests.support.federation import conf_names, federate, rounds, same
from tests.support.replies import aggregate

Smoke = Callable[..., RunConfig]
Points = dict[str, list[tuple[int, float]]]


def logged(path: Path) -> Points:
    """`metrics.jsonl` as TensorBoard would show it."""
    points: Points = {}
    for row in read_rows(path):
        tag = f"device_{row['device']}/{row['name']}" if "device" in row else row["name"]
        points.setdefault(tag, []).append((row["round"], pytest.approx(row["value"])))
    return points


def events(folder: Path) -> Points:
    accumulator = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_a_run_killed_within_a_round_and_resumed_has_every_value_of_its_metrics_log_once(smoke: Smoke) -> None:
    config = smoke("tracking=tensorboard")
    killed = federate(config, upto=1)
    aggregate(killed, 2, [], {1: "ran out of battery"})  # flushed, but never committed: repeated after the resume
    assert "device_1/dropped" in events(killed.directory.path / "tensorboard")

    resumed = build_server(compose([f"resume={config.out}"]))
    rounds(resumed, config, upto=2)
    resumed.finish(config.encoder, config.facts)
    expected = logged(resumed.directory.log.path)
    assert {"knn", "seconds", "discard_ratio", "device_0/loss", "device_1/loss"} <= expected.keys()
    assert {tag: points for tag, points in events(resumed.directory.path / "tensorboard").items() if points} == expected


@pytest.mark.parametrize("name", conf_names("tracking"))
def test_no_tracker_changes_what_is_learned_and_a_check_leaves_no_file(smoke: Smoke, name: str) -> None:
    config = smoke(f"tracking={name}", "rounds=1")
    check(config)
    assert not config.directory.exists()
    assert same(federate(config).shared, federate(smoke("rounds=1", out="plain")).shared)


def test_a_resumed_run_may_change_its_tracker(smoke: Smoke) -> None:
    config = smoke()
    federate(config, upto=1)
    assert compose([f"resume={config.out}", "tracking=tensorboard"]).choices["tracking"] == "tensorboard"


def test_without_tensorboard_the_refusal_says_what_to_install(smoke: Smoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.delitem(sys.modules, "sofed_flwr.tracking.tensorboard", raising=False)
    with pytest.raises(ConfigError, match=r"^tracking\..*pip install 'sofed-flwr\[tracking\]'"):
        check(smoke("tracking=tensorboard"))
