"""Sweeps without a simulation: what is run, in which order, what is written and what is said."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sofed_flwr.core.errors import ConfigError, InterruptedRunError, RunFailed
from sofed_flwr.launch.sweep_table import as_cells
from sofed_flwr.launch.sweeps import Sweep, plan_sweep, refuse_failures, run_sweep
from sofed_flwr.storage.run_directory import RunDirectory
from tests.support.federation import SMOKE, composed_run

KNN = {("fifo", 0): 40.0, ("fifo", 1): 44.0, ("importance", 0): 50.0, ("importance", 1): 53.0}


class Simulation:
    """Leaves what a run leaves, at once; some fail."""

    def __init__(self, fails: Callable[[int], bool] = lambda _: False) -> None:
        self.fails = fails
        self.started: list[str] = []

    def __call__(self, overrides: Sequence[str]) -> tuple[RunDirectory, dict[str, Any]]:
        self.started.append(overrides[-1].partition("=")[0])
        config = composed_run(overrides)
        directory = RunDirectory(config.directory)
        directory.path.mkdir(parents=True, exist_ok=True)
        directory.config.write_text(config.to_yaml())
        if self.fails(len(self.started)):
            raise RunFailed("round 1 had no replies")
        knn = KNN[config.choices["policy"], config.seed]
        accuracies = {"knn": knn, "linear": {"1.0": knn + 20}}
        summary = {"rounds": config.rounds, "seconds": 1.0, "untrained": accuracies, **accuracies}
        directory.encoder.touch()
        directory.log.path.touch()
        directory.write_summary(summary)
        return directory, summary


def planned(tmp_path: Path, *overrides: str) -> Sweep:
    return plan_sweep([*SMOKE, "policy=fifo,importance", "seed=0,1", f"out={tmp_path / 'sweep'}", *overrides])


def quiet(_: str) -> None:
    pass


def test_the_table_ends_with_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    sweep = planned(tmp_path)
    outcomes = run_sweep(sweep, Simulation(), quiet)
    refuse_failures(sweep, outcomes)
    assert as_cells(outcomes) == [
        ["run", "kNN", "linear, 100% labels"],
        ["policy=fifo seed=0", "40.00", "60.00"],
        ["policy=fifo seed=1", "44.00", "64.00"],
        ["policy=importance seed=0", "50.00", "70.00"],
        ["policy=importance seed=1", "53.00", "73.00"],
        ["policy=fifo mean of 2 seeds", "42.00 ± 2.83", "62.00 ± 2.83"],
        ["policy=importance mean of 2 seeds", "51.50 ± 2.12", "71.50 ± 2.12"],
    ]
    text = (sweep.directory / "table.md").read_text()
    assert "| policy=fifo mean of 2 seeds | 42.00 ± 2.83 | 62.00 ± 2.83 |" in text
    content = json.loads((sweep.directory / "table.json").read_text())
    assert content["means"][1]["mean"]["kNN"] == 51.5
    assert content["runs"][3]["overrides"] == ["scale=smoke", "policy=importance", "seed=1"]


def test_a_wrong_run_is_refused_before_the_first_one_starts(tmp_path: Path) -> None:
    simulation = Simulation()
    with pytest.raises(ConfigError, match=r"run 1 of the sweep \(.*clients=300\): "):
        run_sweep(planned(tmp_path, "clients=2,300"), simulation, quiet)
    assert simulation.started == []
    assert not (tmp_path / "sweep").exists()


def test_a_failed_run_is_named_and_the_others_are_run(tmp_path: Path) -> None:
    sweep, simulation = planned(tmp_path), Simulation(lambda number: number == 2)
    outcomes = run_sweep(sweep, simulation, quiet)
    assert len(simulation.started) == 4
    assert as_cells(outcomes)[2] == ["policy=fifo seed=1 (failed)", "", ""]
    assert [row[0] for row in as_cells(outcomes)[5:]] == ["policy=importance mean of 2 seeds"]
    with pytest.raises(RunFailed) as caught:
        refuse_failures(sweep, outcomes)
    again = f"try them again with: sofed run -m resume={sweep.directory}"
    reason = "1 (policy=fifo seed=1): round 1 had no replies"
    assert str(caught.value) == f"1 of 4 runs failed; {again}\n{reason}"
    assert reason.partition("(")[2].replace(")", "") in (sweep.directory / "table.md").read_text()


@pytest.mark.parametrize("same_command", [True, False])
def test_an_interrupted_sweep_skips_what_is_finished_and_resumes_the_rest(tmp_path: Path, same_command: bool) -> None:
    sweep = planned(tmp_path)

    def interrupted(overrides: Sequence[str]) -> tuple[RunDirectory, dict[str, Any]]:
        if overrides[2] == "seed=1":
            with pytest.raises(RunFailed):
                Simulation(lambda _: True)(overrides)
            raise InterruptedRunError("interrupted")
        return Simulation()(overrides)

    with pytest.raises(InterruptedRunError, match=f"continue with: sofed run -m resume={sweep.directory}"):
        run_sweep(sweep, interrupted, quiet)
    assert "fifo seed=0" in (sweep.directory / "table.md").read_text()

    again = planned(tmp_path) if same_command else plan_sweep([f"resume={sweep.directory}"])
    simulation = Simulation()
    outcomes = run_sweep(again, simulation, quiet)
    assert simulation.started == ["resume", "out", "out"]
    assert [outcome.values["kNN"] for outcome in outcomes] == [40.0, 44.0, 50.0, 53.0]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"jobs": 3}', '{"jobs": [3]}', '{"jobs": ["ab"]}', '{"jobs": [[1]]}', "[" * 100_000]
)
def test_a_damaged_sweep_is_refused_in_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(ConfigError, match=r"sweep\.json: is damaged"):
        plan_sweep([f"resume={tmp_path}"])


@pytest.mark.parametrize("override", ["hydra.searchpath=[pkg://antigravity]", "dataset=../../elsewhere"])
def test_a_sweep_of_somebody_else_reaches_no_further_than_its_runs(tmp_path: Path, override: str) -> None:
    (tmp_path / "sweep.json").write_text(json.dumps({"jobs": [["seed=0", override]]}))
    with pytest.raises(ConfigError, match=r"sweep\.json holds the override"):
        plan_sweep([f"resume={tmp_path}"])


def test_a_sweep_is_not_mixed_with_another(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no sweep to continue, sweep\.json is missing"):
        plan_sweep([f"resume={tmp_path}"])
    run_sweep(planned(tmp_path), Simulation(), quiet)
    with pytest.raises(ConfigError, match="holds another sweep; choose another out"):
        planned(tmp_path, "rounds=3")
    with pytest.raises(ConfigError, match="continues a sweep as it was, without other overrides"):
        plan_sweep([f"resume={tmp_path / 'sweep'}", "rounds=3"])
