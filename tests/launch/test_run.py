"""A run is evaluated by what it left behind, not by what Flower says of it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.progress import Progress

from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import RunFailed
from sofed_flwr.launch import progress
from sofed_flwr.launch import run as running
from sofed_flwr.launch.run import is_complete, run_simulation
from sofed_flwr.storage.metrics_log import RunLog
from sofed_flwr.storage.run_directory import RunDirectory
from tests.support.federation import SMOKE, federate


def finish(config: RunConfig) -> None:
    """All rounds, and what they leave."""
    federate(config).finish(config.encoder, config.facts)


def test_a_run_is_complete_when_all_rounds_are_committed_and_the_result_is_whole(
    tmp_path: Path, smoke: Callable[..., RunConfig]
) -> None:
    config = smoke()
    server = federate(config)
    assert not is_complete(server.directory, 2)
    server.finish(config.encoder, config.facts)
    assert is_complete(server.directory, 2)
    assert not is_complete(server.directory, 3)
    for number, (name, left) in enumerate(
        [("summary.json", -9), ("encoder.safetensors", -9), ("summary.json", 0), ("encoder.safetensors", 0)]
    ):
        copy = shutil.copytree(config.directory, tmp_path / str(number))
        os.truncate(copy / name, (copy / name).stat().st_size + left if left else 0)
        assert not is_complete(RunDirectory(copy), 2)
    shutil.rmtree(config.directory / "checkpoint")
    assert not is_complete(server.directory, 2)


def test_a_run_that_flower_gave_up_after_its_last_round_counts(
    tmp_path: Path, smoke: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is with a laptop that was suspended: Flower misses a minute of heartbeats."""

    def simulate(job: running.SimulationJob, _: Callable[[], None]) -> None:
        finish(smoke())
        raise RunFailed("No heartbeat received from the task")

    monkeypatch.setattr(running, "simulate", simulate)
    directory, summary = run_simulation([*SMOKE, f"out={tmp_path / 'run'}"])
    assert summary["rounds"] == 2
    said = (directory.path / "flower.log").read_text()
    assert said == (
        "Flower reports a failure (No heartbeat received from the task), "
        "but all rounds are committed: the run counts.\n"
    )


def test_a_notebook_shows_the_progress_in_one_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ipywidgets, which rich's own bar would need there."""
    shown: list[str] = []

    class Output:
        def update(self, bar: Progress) -> None:
            shown.append(bar._repr_mimebundle_([], [])["text/plain"])

    monkeypatch.setattr(progress.console, "is_jupyter", True)
    monkeypatch.setattr("IPython.display.display", lambda bar, display_id: Output())
    log = RunLog(tmp_path / "metrics.jsonl")
    with progress.RunProgress(log.path, 4) as bar:
        log.write(3, {"asked": 2, "seconds": 1.0})
        bar.update()
    assert "round 3" in shown[0]
    assert "3/4" in shown[-1]


def test_a_run_that_flower_gave_up_before_says_how_to_go_on(
    tmp_path: Path, smoke: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    def simulate(job: running.SimulationJob, _: Callable[[], None]) -> None:
        federate(smoke(), upto=1)
        raise RunFailed("No heartbeat received from the task")

    monkeypatch.setattr(running, "simulate", simulate)
    with pytest.raises(RunFailed) as caught:
        run_simulation([*SMOKE, f"out={tmp_path / 'run'}"])
    how = f"continue from the last committed round with: sofed run resume={tmp_path / 'run'}"
    assert str(caught.value) == f"No heartbeat received from the task; {how}"
