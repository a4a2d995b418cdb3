"""Every row of the paper is a command: grids compose, run, are not run twice, and stand beside the paper's figures."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from threading import Barrier, Lock

import pytest
from typer.testing import CliRunner

from sofed_flwr.analysis.reproduce.grid import cells, find_table, tables
from sofed_flwr.analysis.reproduce.order import order
from sofed_flwr.analysis.reproduce.plan import place, plan
from sofed_flwr.analysis.reproduce.results import markdown
from sofed_flwr.analysis.reproduce.table import reproduce
from sofed_flwr.cli.main import app
from sofed_flwr.config.compose import compose
from sofed_flwr.core.errors import ConfigError, InterruptedRunError, RunFailed
from sofed_flwr.storage.metrics_log import read_rows
from tests.support.federation import compose_once, composed_run, conf_names, federate

TABLES = list(tables())
ONE_ROUND = ["rounds=1"]
FEW_CELLS = ["table2_devices", "figure6_discard", "figure7_score_trend"]
"""Accuracies, a curve, a trace; the others take a minute."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sofed_flwr.analysis.reproduce.grid.compose", lambda overrides: compose_once(*overrides))
    monkeypatch.setattr("sofed_flwr.analysis.reproduce.table.TIMED_ITERATIONS", 3)


def without_flower(overrides: Sequence[str]) -> None:
    config = composed_run(overrides)
    federate(config).finish(config.encoder, config.facts)


def paper(table: str, row: str, column: int) -> float:
    value = next(line.paper[column] for line in find_table(table).rows if line.name == row)
    assert value is not None
    return value


def test_every_table_has_an_experiment_and_every_experiment_is_in_a_table() -> None:
    assert sorted(TABLES) == conf_names("experiment")


QUOTED = {  # SOFed's lead as the text of section IV-B has it
    ("table1_frameworks", 0): {"FedSimCLR-IS": 5.27, "FedSimCLR-RR": 10.46, "FedU-RR": 1.78, "FedU-FIFO": 2.05},
    ("table1_frameworks", 1): {"FedSimCLR-IS": 4.48, "FedSimCLR-RR": 8.53, "FedU-RR": 1.35, "FedU-FIFO": 1.24},
    ("table2_devices", 0): {"FedSimCLR-IS": 7.49, "FedU-IS": 0.53, "FedSimCLR-RR": 11.07, "FedSimCLR-FIFO": 13.36},
}


@pytest.mark.parametrize(("table", "column"), QUOTED)
def test_the_transcribed_values_have_the_differences_the_papers_text_quotes(table: str, column: int) -> None:
    quoted = QUOTED[table, column]
    differences = {row: paper(table, "SOFed", column) - paper(table, row, column) for row in quoted}
    assert differences == pytest.approx(quoted, abs=0.005)


def test_the_paper_repeats_itself_where_tables_meet() -> None:
    flip, lazy_off, sofed = (
        paper("table5_weak_views", "Horizontal flipping", 2),
        paper("table6_lazy", "disabled", 0),
        paper("table1_frameworks", "SOFed", 0),
    )
    assert flip == lazy_off == sofed == 78.66


def test_every_setting_of_every_table_is_a_valid_configuration() -> None:
    """And so is every cell, as a row never sets what a column sets; at smoke size each is composed by itself."""
    valid: set[str] = set()
    for scale, (name, table) in itertools.product(["paper", "small", "long"], tables().items()):
        of_rows = {text.partition("=")[0] for row in table.rows for text in row.run.split()}
        of_columns = {text.partition("=")[0] for column in table.columns for text in column.overrides(scale)}
        assert not of_rows & of_columns
        for cell in cells(table, scale, 1, {}, []):
            if not valid.issuperset(cell.overrides):
                assert cell.config.choices["experiment"] == name
                valid.update(cell.overrides)


def test_the_papers_setting_is_the_papers() -> None:
    config = compose(["experiment=table3_policies"])
    assert (config.rounds, config.clients, config.buffer, config.stream.stc) == (300, 5, 128, 500)
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (0.06, 1e-4)
    assert (config.choices["encoder"], config.choices["dataset"]) == ("resnet18", "cifar10")
    assert compose(["experiment=table4_buffer"]).rounds == 100
    assert compose(["experiment=table4_buffer", "scale=small"]).rounds < 100


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by all tables, as a user's are."""
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize(
    "name", [name if name in FEW_CELLS else pytest.param(name, marks=pytest.mark.soak) for name in TABLES]
)
def test_every_cell_of_every_table_runs_at_smoke_size_and_is_not_run_twice(
    name: str, tmp_path: Path, runs: Path
) -> None:
    wanted = order(name, "smoke", 1, [], [], ONE_ROUND + (["trace.round=1"] if find_table(name).trace else []))
    folders = tmp_path / "results", runs
    content = reproduce(wanted, *folders, without_flower, announce=lambda _: None)
    assert not [run for run in content["runs"] if run["failure"]]
    assert all(cell["ours"] for cell in content["cells"])
    written = {path.suffix: path.read_text() for path in (tmp_path / "results").iterdir()}
    assert json.loads(written[".json"]) == content
    assert find_table(name).title in written[".md"]
    assert "not run" not in written[".md"]
    assert written[".svg"].count("<svg") == 1

    assert str(plan(wanted, *folders)) == f"{len(wanted.cells)} cells, {len(wanted.cells)} done"


def test_an_unfinished_cell_is_resumed_and_a_failed_one_does_not_stop_the_others(tmp_path: Path) -> None:
    said: list[str] = []
    asked: list[Sequence[str]] = []

    def simulate(overrides: Sequence[str]) -> None:
        asked.append(overrides)
        if "policy.lazy_interval=4" in overrides:
            raise RunFailed("the process ended")
        if "policy.lazy_interval=10" in overrides and not overrides[-1].startswith("resume="):
            federate(compose(overrides), upto=1)
            raise KeyboardInterrupt
        without_flower(overrides)

    wanted = order("table6_lazy", "smoke", 1, [], ["disabled", "4;", "10;"], [])
    folders = tmp_path / "results", tmp_path / "runs"
    with pytest.raises(KeyboardInterrupt):
        reproduce(wanted, *folders, simulate, said.append)
    content = json.loads((tmp_path / "results" / "table6_lazy_smoke.json").read_text())
    assert [bool(run["failure"]) for run in content["runs"]] == [False, True]

    content = reproduce(wanted, *folders, simulate, said.append)
    assert [run["failure"] for run in content["runs"]] == [None, "the process ended", None]
    assert [overrides[-1].split("=")[0] for overrides in asked] == ["out", "out", "out", "out", "resume"]
    assert any("failed: the process ended" in line for line in said)
    assert "| 4 | not run (78.48) |" in markdown(content, wanted.table)


def test_a_cells_name_depends_on_what_decides_its_result_and_on_nothing_else() -> None:
    """The first is version 0.2's: where it changes, `sofed reproduce` runs again what was finished long ago."""

    def name(*overrides: str) -> str:
        return place(compose(["experiment=table3_policies", *overrides]), Path("runs")).path.name

    assert name() == "sofed-importance-cifar10-seed0-289abc97"
    assert name("workers=3", "tracking=tensorboard", "device.threads=2", "out=elsewhere", "force=true") == name()
    others = [name(text) for text in ("rounds=3", "federation.quorum=2", "evaluation.every=3", "policy.max_age=9")]
    assert len({name(), *others}) == 5


def test_cells_side_by_side_are_the_cells_one_by_one(tmp_path: Path) -> None:
    wanted = order("table6_lazy", "smoke", 1, [], ["disabled", "4;"], ["rounds=1"])
    together, one_by_one = Barrier(2, timeout=60), Lock()

    def simulate(overrides: Sequence[str]) -> None:
        together.wait()
        with one_by_one:  # the product has a process for each
            without_flower(overrides)

    content = reproduce(wanted, tmp_path / "results", tmp_path / "runs", simulate, print, jobs=2)
    assert [(run["row"], run["failure"]) for run in content["runs"]] == [("disabled", None), ("4", None)]
    assert [bool(cell["difference"]) for cell in content["cells"] if cell["column"] == "accuracy"][:2] == [True, True]


def test_tables_share_the_runs_they_have_in_common(tmp_path: Path) -> None:
    ran: list[Sequence[str]] = []

    def simulate(overrides: Sequence[str]) -> None:
        ran.append(overrides)
        without_flower(overrides)

    for name, row in (("table6_lazy", "disabled"), ("table5_weak_views", "horizontal")):
        reproduce(
            order(name, "smoke", 1, [], [row], ONE_ROUND), tmp_path / "results", tmp_path / "runs", simulate, print
        )
    assert len(ran) == 1


def test_data_files_stand_in_for_downloads(tmp_path: Path) -> None:
    file = tmp_path / "my images.npz"
    file.touch()
    wanted = order("table1_frameworks", "small", 1, [f"cifar10={file}"], ["sofed"], [])
    chosen = {cell.columns[0]: cell.config.dataset.get("path") for cell in wanted.cells}
    assert chosen["CIFAR-10, STC 500"] == str(file)
    assert chosen["SVHN, STC 500"] is None


def test_streams_by_superclass_take_a_file_of_their_own(tmp_path: Path) -> None:
    fine, coarse = tmp_path / "fine.npz", tmp_path / "coarse.npz"
    fine.touch()
    coarse.touch()
    given = [f"cifar100={fine}"], [f"cifar100={fine}", f"cifar100:superclass={coarse}"]
    without, both = (order("table1_frameworks", "small", 1, files, ["sofed"], []).cells for files in given)
    by_superclass = "CIFAR-100, STC 2500"
    assert {c.columns[0]: c.config.dataset.get("path") for c in both}[by_superclass] == str(coarse)
    assert {c.columns[0]: c.config.choices["dataset"] for c in without}[by_superclass] == "cifar100"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("table9", "small", [], []), "table9: there is no such table or figure; choose one of table1_frameworks"),
        (("table6_lazy", "tiny", [], []), "--scale=tiny: choose one of paper"),
        (("table6_lazy", "small", ["cifar10=none.npz"], []), "data=cifar10=none.npz: expected NAME=FILE.npz"),
        (("table6_lazy", "small", [], ["FIFO"]), "only=FIFO: no cell of table6_lazy is called that"),
    ],
)
def test_what_cannot_be_reproduced_is_said_in_a_sentence(
    arguments: tuple[str, str, list[str], list[str]], sentence: str
) -> None:
    name, scale, data, only = arguments
    with pytest.raises(ConfigError, match=sentence):
        order(name, scale, 1, data, only, [])


def test_the_command_ends_with_2_for_a_wrong_name_and_1_for_failed_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = CliRunner().invoke(app, ["reproduce", "table9"])
    assert (wrong.exit_code, "table9: there is no such table" in wrong.output) == (2, True)

    def fails(overrides: Sequence[str]) -> None:
        raise RunFailed("no more disk")

    monkeypatch.setattr("sofed_flwr.launch.run.run_simulation", fails)
    failed = CliRunner().invoke(app, ["reproduce", "table5_weak_views", "--scale", "smoke", "--only", "gray"])
    assert (failed.exit_code, "1 cells failed: Gray scale, seed 0: no more disk" in failed.output) == (1, True)


def seconds_by_round(run: Path) -> dict[int, float]:
    return {row["round"]: row["value"] for row in read_rows(run / "metrics.jsonl") if row["name"] == "seconds"}


def test_a_grid_stopped_by_ctrl_c_goes_on_with_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No committed round is run again. How Ctrl-C ends a run: `launch/test_simulated_run.py`."""
    monkeypatch.chdir(tmp_path)
    command = ["reproduce", "table6_lazy", "--scale", "smoke", "--only", "disabled", "rounds=3"]

    def interrupted(overrides: Sequence[str]) -> None:
        federate(composed_run(overrides), upto=1)
        raise InterruptedRunError("interrupted; continue with: sofed run resume=here")

    monkeypatch.setattr("sofed_flwr.launch.run.run_simulation", interrupted)
    stopped = CliRunner().invoke(app, command)
    assert (stopped.exit_code, stopped.stderr) == (
        130,
        "sofed: interrupted; the same command continues where it stopped\n",
    )
    (run,) = Path("outputs/reproduce").iterdir()
    before = seconds_by_round(run)
    assert before.keys() == {0, 1}

    monkeypatch.setattr("sofed_flwr.launch.run.run_simulation", without_flower)
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0, again.output
    content = json.loads(Path("results/table6_lazy_smoke_rounds=3.json").read_text())
    assert [(cell["row"], cell["failure"]) for cell in content["runs"]] == [("disabled", None)]
    assert seconds_by_round(run).keys() == set(range(4))
    assert before.items() <= seconds_by_round(run).items()
