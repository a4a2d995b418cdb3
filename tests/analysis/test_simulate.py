"""A run from Python: keywords in, a result out. Flower itself: `tests/launch/test_simulated_run.py`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from sofed_flwr import simulate
from sofed_flwr.config.compose import compose
from sofed_flwr.config.override_text import literal
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError, InterruptedRunError, RunFailed
from sofed_flwr.launch import run as running
from tests.support.federation import federate


@pytest.fixture
def _no_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rounds in this process, from the overrides that Flower would get."""

    def rounds(job: running.SimulationJob, tick: Callable[[], None]) -> None:
        config = compose(job.overrides)
        federate(config).finish(config.encoder, config.facts)

    monkeypatch.setattr(running, "simulate", rounds)


@pytest.mark.usefixtures("_no_flower")
def test_a_run_from_a_thread_gives_encoder_metrics_and_report(tmp_path: Path, pixels: torch.Tensor) -> None:
    """Where no signal arrives, and none can be caught."""
    out = tmp_path / "my run's"
    keys: dict[str, Any] = {"policy": "fifo", "rounds": 1, "optimizer__lr": np.float32(0.5), "subset.train": 200}
    with ThreadPoolExecutor(1) as other:
        result = other.submit(simulate, "scale=smoke", "seed=3", out=out, **keys).result()
    config = RunConfig.from_yaml((result.path / "config.yaml").read_text())
    assert (result.path, config.seed, config.optimizer.lr, config.subset.train) == (out, 3, 0.5, 200)
    assert (result.summary["policy"], result.summary["rounds"]) == ("fifo", 1)
    assert result.encoder is result.encoder
    assert result.encoder.features(pixels).shape == (12, 32)

    table = pandas.DataFrame(result.metrics)
    assert list(table) == ["round", "name", "value", "device"]
    losses = table[(table.name == "loss") & table.device.notna()]
    assert sorted(losses.device) == [0, 1]
    assert table[table.name == "knn"].value.iloc[-1] == result.summary["knn"]

    page = result.report()
    assert (page, "<svg" in page.read_text()) == (out / "report.html", True)
    shown = result._repr_mimebundle_([], [])
    assert "policy=fifo" in shown["text/plain"]
    assert shown["text/html"].startswith("<pre")


@pytest.mark.parametrize(
    ("raised", "seen", "sentence"),
    [
        (KeyboardInterrupt, InterruptedRunError, "interrupted; no round was committed"),
        (RunFailed("no replies"), RunFailed, "no replies"),
    ],
)
def test_an_interrupted_kernel_and_a_failure_are_our_exceptions(
    raised: BaseException, seen: type[Exception], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(job: running.SimulationJob, tick: Callable[[], None]) -> None:
        raise raised

    monkeypatch.setattr(running, "simulate", stopped)
    with pytest.raises(seen) as caught:
        simulate("scale=smoke", out=tmp_path / "run")
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"polcy": "fifo"}, "polcy='fifo': there is no such key"),
        ({"optimizer__lr": -1}, "optimizer.lr=-1: input should be greater than 0"),
        ({"rounds": object()}, "object: not a value of a configuration"),
        ({"trust": ["no_such_package"]}, "trust=no_such_package: no package of this name"),
        ({"config_dir": Path("/no/such")}, "--config-dir /no/such: there is no such directory"),
    ],
)
def test_a_wrong_keyword_is_one_sentence_before_anything_starts(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        simulate(**keys)
    assert str(refusal.value).startswith(sentence)


def test_python_values_are_written_in_hydras_grammar() -> None:
    values: dict[str, Any] = {
        "policy": "importance",
        "policy.max_age": None,
        "force": True,
        "optimizer.weight_decay": 1e-7,
        "encoder.blocks": (1, 2, np.int64(3), 4),
        "trace": {"device": 0, "round": 5, "iterations": 20},
        "out": "/a b/it's {odd} \\ [x], \\\\' $y\\",
    }
    config = compose([f"{key}={literal(value)}" for key, value in values.items()])
    assert config.trace is not None
    assert (config.policy["max_age"], config.force, config.optimizer.weight_decay) == (None, True, 1e-7)
    assert (config.encoder["blocks"], config.trace.iterations) == ([1, 2, 3, 4], 20)
    assert config.out == values["out"]
