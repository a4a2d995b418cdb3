"""What the server says of an encoder that is of no use, and of an aggregate that is no model."""

import json
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from sofed_flwr.build import build_server
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import RunStoppedError
from sofed_flwr.core.records import Split
from sofed_flwr.evaluation.collapse import alarm, usable
from sofed_flwr.evaluation.knn import KNN
from sofed_flwr.evaluation.suite import Suite
from sofed_flwr.server.rounds import Server
from sofed_flwr.server.summary import summarise
from sofed_flwr.storage.metrics_log import read_rows
from tests.server.test_update_faults import dropped, step
from tests.support.federation import federate, labelled, same
from tests.support.replies import aggregate

Smoke = Callable[..., RunConfig]


def named(server: Server, *names: str) -> list[tuple[int, str]]:
    return [(row["round"], row["name"]) for row in read_rows(server.directory.log.path) if row["name"] in names]


# features


def test_when_there_is_cause_for_an_alarm() -> None:
    assert alarm(5, None, 0.5) is alarm(5, 0.1, 0.5) is alarm(5, 0.1, None) is None
    assert [found.name for found in (alarm(5, 0.09, 0.5), alarm(5, 0.09, None), alarm(5, 0.0, 0.06)) if found] == [
        "collapsed",
        "collapsed",
        "collapsed",
    ]
    assert alarm(0, 0.0, None) is None, "an untrained network has not collapsed"
    assert alarm(5, 0.06, 0.06) is alarm(1, 0.05, 0.06) is None, "it began like that"
    for spread in (math.nan, math.inf):
        for round_number in (0, 5):
            found = alarm(round_number, spread, None)
            assert found is not None
            assert found.name == "features_not_finite"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e30])
def test_one_value_is_enough_to_make_features_unusable(value: float) -> None:
    features = torch.ones(4, 3)
    assert usable(features)
    features[2, 1] = value
    assert not usable(features)


@pytest.mark.parametrize("where", ["train", "test"])
def test_features_that_are_not_finite_have_no_accuracy(where: str, caplog: pytest.LogCaptureFixture) -> None:
    split = Split(train=labelled([4, 4]), test=labelled([2, 3]))
    spoiled = len(split.train) if where == "train" else len(split.test)

    def encode(images: torch.Tensor) -> torch.Tensor:
        features = images.float().mean(dim=(2, 3)) + torch.arange(3)
        return features * (torch.nan if len(images) == spoiled else 1)

    values = Suite(every=1, knn=KNN()).run(nn.Identity().eval(), encode, split)
    assert list(values) == ["feature_std"]
    assert math.isnan(values["feature_std"])
    assert "the encoder's features are not finite" in caplog.text


def test_nan_features_are_an_alarm_and_the_summary_has_no_accuracy_of_an_earlier_round(
    smoke: Smoke, caplog: pytest.LogCaptureFixture
) -> None:
    config = smoke("rounds=2", "evaluation.every=1")
    server = federate(config, upto=1)
    name = next(name for name in server.shared if name.endswith("running_var"))
    server.shared = server.shared | {name: torch.full_like(server.shared[name], -1.0)}
    server.close_round(2)
    assert named(server, "collapsed", "features_not_finite") == [(2, "features_not_finite")]
    assert "the encoder has no features" in caplog.text
    rows = read_rows(server.directory.log.path)
    assert not [row for row in rows if row["round"] == 2 and row["name"].startswith(("knn", "linear"))]
    server.finish(config.encoder, config.facts)
    summary = json.loads(server.directory.summary.read_text())
    assert (summary["knn"], summary["linear"], summary["feature_std"]) == (None, {}, None)
    assert summary["untrained"]["knn"] is not None


def test_a_summary_ends_with_the_last_evaluation() -> None:
    rows = [
        {"round": number, "name": name, "value": value}
        for number, name, value in [
            (0, "knn", 10.0),
            (0, "feature_std", 0.5),
            (2, "knn", 30.0),
            (2, "feature_std", 0.4),
        ]
    ]
    assert summarise(rows, {})["knn"] == 30.0
    assert summarise([*rows, {"round": 4, "name": "feature_std", "value": None}], {})["knn"] is None


def test_an_untrained_network_that_sees_no_difference_is_no_alarm(smoke: Smoke) -> None:
    server = build_server(smoke("evaluation.every=1"))
    blind = {name: tensor for name, tensor in server.shared.items() if name.endswith("bn1.weight")}
    server.shared = server.shared | {name: torch.zeros_like(tensor) for name, tensor in blind.items()}
    server.close_round(0)
    server.close_round(1)
    assert named(server, "collapsed") == []


# the aggregate


@pytest.mark.parametrize("strategy", ["fedavgm", "fedadam", "fedyogi"])
def test_an_aggregate_that_is_not_finite_is_a_failed_round_and_no_step(smoke: Smoke, strategy: str) -> None:
    overrides = [f"strategy={strategy}", "strategy.lr=1e300", "federation.max_failed_rounds=2", "evaluation=none"]
    server = build_server(smoke(*overrides))
    before, memory = server.shared, server.strategy.state_dict()
    assert aggregate(server, 1, [step(before, device, 1) for device in range(2)], {}) == {}
    assert same(server.shared, before)
    assert same(server.strategy.state_dict(), memory)
    (failure,) = [row for row in read_rows(server.directory.log.path) if row["name"] == "failed"]
    assert failure["reason"].startswith("has no usable aggregate of 2 replies (online.backbone.")
    assert failure["reason"].endswith("holds a value that is not finite)")
    with pytest.raises(RunStoppedError, match=r"round 2 has no usable aggregate .* 2 failed rounds in a row"):
        aggregate(server, 2, [step(before, device, 2) for device in range(2)], {})


def test_statistics_nobody_can_have_measured_are_dropped_under_privacy_too(smoke: Smoke) -> None:
    pytest.importorskip("dp_accounting")
    server = build_server(smoke("strategy=dp_fixed", "clients=2"))
    before = server.shared
    name = next(name for name in before if name.endswith("running_var"))
    crowd = [step(before, device, 1) for device in range(2)]
    crowd[1].shared[name].fill_(-1.0)
    aggregate(server, 1, crowd, {})
    assert "running_var reaches from -1 to -1" in dropped(server)[0][2]
    assert named(server, "failed") == [(1, "failed")], "a private round needs all of its devices"
    assert same(server.shared, before)
