"""Device and server together, without Flower: state that survives, rounds that repeat, labels that stay behind."""

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sofed_flwr import build as assembly
from sofed_flwr.build import build_device, build_server
from sofed_flwr.config.compose import compose
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.records import LabeledImages, Split, State, Update
from sofed_flwr.encoder import load_encoder
from sofed_flwr.launch.progress import result_table
from sofed_flwr.server.rounds import RunStoppedError
from sofed_flwr.storage.metrics_log import RunLog, read_rows
from tests.support.federation import conf_names, federate, rounds, same
from tests.support.replies import aggregate

Smoke = Callable[..., RunConfig]


def test_the_same_seed_gives_the_same_encoder_file_and_another_seed_another(smoke: Smoke) -> None:
    def encoder_bytes(*overrides: str, out: str) -> bytes:
        config = smoke(*overrides, out=out)
        server = federate(config)
        server.finish(config.encoder, {})
        return server.directory.encoder.read_bytes()

    first = encoder_bytes(out="a")
    assert encoder_bytes(out="b") == first
    assert encoder_bytes("seed=1", out="c") != first


def test_the_order_of_clients_does_not_matter(smoke: Smoke) -> None:
    results = []
    for name, order in (("forward", [0, 1, 2]), ("backward", [2, 1, 0])):
        config = smoke("clients=3", out=name)
        server = build_server(config)
        updates = [build_device(config, server.run, k).train_round(1, server.shared) for k in order]
        aggregate(server, 1, updates, {})
        results.append(server.shared)
    assert same(*results)


def test_a_server_killed_before_it_commits_repeats_the_round_bit_for_bit(smoke: Smoke) -> None:
    """Some devices have trained and stored the lost round: they go back to the state before it."""
    whole = federate(smoke("rounds=3", out="whole"))

    config = smoke("rounds=3", out="broken")
    server = federate(config, upto=1)
    build_device(config, server.run, 0).train_round(2, server.shared)
    for _ in range(2):
        resumed = build_server(compose([f"resume={config.out}"]))
        build_device(config, resumed.run, 1).train_round(2, resumed.shared)
    assert (resumed.run, resumed.committed) == (server.run, 1)
    rounds(resumed, config, upto=3)
    assert same(resumed.shared, whole.shared)


def test_a_resumed_run_takes_back_what_was_logged_after_the_last_commit(smoke: Smoke) -> None:
    config = smoke(out="broken")
    server = federate(config, upto=1)
    server.directory.log.write(2, {"loss": 1.0})
    build_server(compose([f"resume={config.out}"]))
    assert {row["round"] for row in read_rows(server.directory.log.path)} == {0, 1}


def test_a_device_keeps_buffer_scores_ages_cursor_and_target_between_rounds(smoke: Smoke) -> None:
    config = smoke()
    server = build_server(config)
    first = build_device(config, server.run, 0)
    first.train_round(1, server.shared)
    second = build_device(config, server.run, 0)
    held = second.store.newest()
    second._restore(held, server.shared)
    assert same(second.buffer.state_dict(), first.buffer.state_dict())
    assert second.stream.cursor == first.stream.cursor == 2 * config.buffer
    assert same(second.trainer.method.local_state(), first.trainer.method.local_state())
    assert same(second.trainer.method.shared_state(), server.shared)


def test_another_run_keeps_a_devices_images_but_not_its_old_model(smoke: Smoke) -> None:
    config = smoke("policy=importance")
    server = build_server(config)
    first = build_device(config, "run one", 0)
    first.train_round(1, server.shared)
    second = build_device(config, "run two", 0)
    second._restore(second._generation_before(1), server.shared)
    assert torch.equal(second.buffer.images, first.buffer.images)
    assert second.buffer.scores.isnan().all()
    target = {name.removeprefix("target."): t for name, t in second.trainer.method.local_state().items()}
    online = {n.removeprefix("online."): t for n, t in server.shared.items() if n.startswith("online.")}
    assert same(target, online)


class MarkedLabels(np.ndarray):
    """Labels that can be recognised wherever they turn up."""


def reachable(root: Any) -> list[Any]:
    """Every object that `root` can get at, module globals and classes excluded."""
    found: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) in found or isinstance(thing, type) or type(thing).__name__ in ("module", "function"):
            continue
        found[id(thing)] = thing
        waiting += gc.get_referents(thing)
    return list(found.values())


def test_labels_never_reach_a_trainer_or_a_policy(smoke: Smoke, monkeypatch: pytest.MonkeyPatch) -> None:
    config = smoke()
    split = assembly.build_dataset(config)
    marked = LabeledImages(split.train.images, split.train.labels.view(MarkedLabels))
    monkeypatch.setattr(assembly, "build_dataset", lambda *_, **__: Split(marked, split.test))
    assert any(isinstance(thing, MarkedLabels) for thing in reachable(marked)), "the search must find what is there"

    device = build_device(config, "run", 0)
    arrays = [thing for thing in reachable(device) if isinstance(thing, np.ndarray | torch.Tensor)]
    assert any(array is split.train.images for array in arrays), "the device has the images"
    assert not any(isinstance(array, MarkedLabels | LabeledImages) for array in reachable(device))
    integers = [a for a in arrays if isinstance(a, np.ndarray) and a.dtype == np.int64 and len(a) > 1]
    order = device.stream._source._order
    assert all(array is order or array.base is order for array in integers)


def test_what_the_labels_say_changes_nothing_once_the_order_is_fixed(
    smoke: Smoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = smoke()
    labels = assembly.build_dataset(config).train.labels
    streams = assembly.build_streams(config, labels)
    monkeypatch.setattr(assembly, "build_streams", lambda *_: streams)
    shared = assembly.build_method(config).shared_state()
    truth = build_device(config, "run", 0).train_round(1, shared)
    split = assembly.build_dataset(config)
    wrong_labels = Split(LabeledImages(split.train.images, np.zeros_like(labels)), split.test)
    monkeypatch.setattr(assembly, "build_dataset", lambda *_, **__: wrong_labels)
    again = build_device(smoke(out="other"), "run", 0).train_round(1, shared)
    assert same(again.shared, truth.shared)


@pytest.mark.parametrize("policy", conf_names("policy"))
def test_every_policy_trains_a_federation(smoke: Smoke, policy: str) -> None:
    config = smoke(f"policy={policy}", "rounds=1")
    server = federate(config)
    rows = read_rows(server.directory.log.path)
    names = {row["name"] for row in rows if "device" not in row}
    assert {"loss", "discard_ratio", "seconds_scoring", "seconds_training", "knn", "linear_1.0"} <= names
    assert all(torch.isfinite(tensor).all() for tensor in server.shared.values())


def test_counters_by_hand(smoke: Smoke) -> None:
    """FIFO with segments as large as the buffer keeps every new image and rescores none."""
    config = smoke("policy=fifo", "rounds=1")
    counts = build_device(config, "run", 0).train_round(1, assembly.build_method(config).shared_state()).metrics
    sixteen = config.buffer
    assert {k: counts[k] for k in ("steps", "seen", "discarded", "held", "rescored")} == {
        "steps": 2,
        "seen": 2 * sixteen,
        "discarded": 0,
        "held": sixteen,
        "rescored": 0,
    }


def test_without_enough_good_replies_the_global_model_stays_and_max_failed_rounds_end_the_run(smoke: Smoke) -> None:
    config = smoke("federation.quorum=2", "federation.max_failed_rounds=2")
    server = build_server(config)
    before = {name: tensor.clone() for name, tensor in server.shared.items()}
    poisoned = {name: torch.full_like(tensor, 7) for name, tensor in before.items()}
    aggregate(server, 1, [Update(0, 1, poisoned, {"loss": 1.0})], {1: "ran out of battery"})
    assert same(server.shared, before)
    with pytest.raises(RunStoppedError, match=r"device 1: ran out of battery\); 2 failed rounds in a row"):
        aggregate(server, 2, [], {1: "ran out of battery"})
    reasons = [row["reason"] for row in read_rows(server.directory.log.path) if row["name"] == "dropped"]
    assert reasons == ["ran out of battery"] * 2


def test_a_run_in_which_no_round_counted_has_no_result(smoke: Smoke) -> None:
    config = smoke()
    server = build_server(config)
    for number in (0, 1, 2):
        if number:
            aggregate(server, number, [], {0: "diverged", 1: "ran out of battery"})
        server.close_round(number)
    for again in (server, build_server(compose([f"resume={config.out}"]))):
        with pytest.raises(
            RunStoppedError, match=r"none of 2 rounds counted; .*\(device 0: diverged; device 1: ran out"
        ):
            again.finish(config.encoder, config.facts)
    assert not server.directory.summary.exists()
    assert not server.directory.encoder.exists()
    resumed = build_server(compose([f"resume={config.out}", "rounds=3"]))
    rounds(resumed, config, upto=3)
    resumed.finish(config.encoder, config.facts | {"rounds": 3})
    summary = json.loads(server.directory.summary.read_text())
    assert summary["failed_rounds"] == 2
    assert str(result_table(summary).caption).startswith(
        "2 of 3 rounds failed; the last had 0 usable replies of 1 needed ("
    )


def test_an_aggregate_that_is_not_finite_leaves_no_trace(smoke: Smoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the model nor in what the strategy remembers."""
    config = smoke("strategy=fedadam")
    server = build_server(config)
    before, memory, combine = server.shared, server.strategy.state_dict(), server.strategy.aggregate

    def diverging(*arguments: Any) -> State:
        return {name: tensor * torch.inf for name, tensor in combine(*arguments).items()}

    monkeypatch.setattr(server.strategy, "aggregate", diverging)
    aggregate(server, 1, [build_device(config, server.run, 0).train_round(1, server.shared)], {})
    assert same(server.shared, before)
    assert same(server.strategy.state_dict(), memory)
    (failure,) = [row for row in read_rows(server.directory.log.path) if row["name"] == "failed"]
    assert "not finite" in failure["reason"]
    assert not server.directory.ledger.releases


def test_a_poisoned_reply_leaves_the_mean_of_the_others(smoke: Smoke) -> None:
    config = smoke("clients=3")
    server = build_server(config)
    updates = [build_device(config, server.run, k).train_round(1, server.shared) for k in range(3)]
    name = next(iter(server.shared))
    expected = (updates[0].shared[name] + updates[1].shared[name]) / 2
    updates[2].shared[name].fill_(float("nan"))
    aggregate(server, 1, updates, {})
    torch.testing.assert_close(server.shared[name], expected, rtol=0, atol=1e-6)


def test_a_collapsed_encoder_raises_an_alarm_at_its_evaluation_and_a_healthy_one_none(smoke: Smoke) -> None:
    quick = ["evaluation.linear.fractions=[1.0]", "evaluation.linear.max_iterations=1"]
    server = federate(smoke("rounds=20", "stream.segments=1", "evaluation.every=1", *quick), upto=20)
    assert not [row for row in read_rows(server.directory.log.path) if row["name"] == "collapsed"]
    server.shared = {name: torch.zeros_like(tensor) for name, tensor in server.shared.items()}
    server.close_round(21)
    (alarm,) = [row for row in read_rows(server.directory.log.path) if row["name"] == "collapsed"]
    assert alarm["round"] == 21
    assert alarm["reason"] == "all images look alike to it (feature_std 0, below 0.1)"


def test_the_summary_and_the_encoder_are_what_people_take_away(smoke: Smoke) -> None:
    config = smoke("policy=importance", "policy.lazy_interval=2")
    server = federate(config)
    server.finish(config.encoder, config.facts)
    summary = json.loads(server.directory.summary.read_text())
    assert (summary["method"], summary["policy"], summary["clients"]) == ("sofed", "importance", 2)
    assert set(summary["linear"]) == set(summary["untrained"]["linear"]) == {"0.01", "0.1", "1.0"}
    assert 0 <= summary["discard_ratio"] <= 1
    assert 0 < summary["rescoring_ratio"] <= 1
    rows = read_rows(server.directory.log.path)
    assert summary["images_seen"] == sum(row["value"] for row in rows if row["name"] == "seen") > 0
    told = load_encoder(server.directory.encoder).facts["results"]
    assert told == {name: summary[name] for name in ("images_seen", "knn", "linear", "untrained")}

    images = torch.tensor(server.split().test.images[:5])
    server.method.load(server.shared)
    torch.testing.assert_close(load_encoder(server.directory.encoder).features(images), server.method.features(images))


def test_the_metrics_log_survives_a_value_that_is_not_a_number_and_a_line_cut_short(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "metrics.jsonl")
    log.write(1, {"loss": float("nan"), "knn": 50.0})
    with log.path.open("a") as file:
        file.write('{"round": 2, "na')
    assert [(row["name"], row["value"]) for row in read_rows(log.path)] == [("loss", None), ("knn", 50.0)]
