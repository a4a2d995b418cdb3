"""Results of `sofed reproduce` are not lost: other settings are another table, finished cells stay, damage is said."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from sofed_flwr.analysis.reproduce.grid import Line, Table, find_table
from sofed_flwr.analysis.reproduce.plot import curves
from sofed_flwr.analysis.reproduce.records import RunRecord, read_earlier, read_summary
from sofed_flwr.analysis.reproduce.results import paired_difference
from sofed_flwr.cli.main import app
from sofed_flwr.core.errors import DamagedFileError, RunFailed
from sofed_flwr.storage.metrics_log import RunLog
from tests.support.federation import compose_once, composed_run, conf_names

TABLE = "table5_weak_views"
Command = Callable[..., Result]


def simulated(overrides: Sequence[str]) -> None:
    """A run whose accuracy is its seed plus its number of rounds, with nothing computed."""
    config = composed_run(overrides)
    folder = config.directory
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config.to_yaml())
    linear = dict.fromkeys(("0.01", "0.1", "1.0"), 10.0 * config.seed + config.rounds)
    RunLog(folder / "metrics.jsonl").write(config.rounds, {f"linear_{name}": value for name, value in linear.items()})
    summary = {"linear": linear, "untrained": {"linear": linear}, "seconds": 60.0, "rescoring_ratio": 0.5}
    (folder / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`sofed reproduce TABLE --scale smoke ...` in a directory of its own, without Flower."""
    home = tmp_path / "ho[x]me"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setattr("sofed_flwr.launch.run.run_simulation", simulated)
    monkeypatch.setattr("sofed_flwr.analysis.reproduce.grid.compose", lambda overrides: compose_once(*overrides))
    return lambda *words: CliRunner().invoke(app, ["reproduce", TABLE, "--scale", "smoke", *words])


def done(result: Result) -> str:
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def table(stem: str) -> str:
    return Path(f"results/{stem}.md").read_text()


def test_other_settings_are_another_table(command: Command) -> None:
    done(command())
    before = {path.name: path.read_bytes() for path in Path("results").iterdir()}
    done(command("rounds=1", "--only", "gray"))
    done(command("workers=1", "device.threads=2"))
    after = {path.name: path.read_bytes() for path in Path("results").iterdir()}
    assert before.keys() == {f"{TABLE}_smoke{suffix}" for suffix in (".json", ".md", ".svg")}
    assert "not run" not in before[f"{TABLE}_smoke.md"].decode()
    assert after.keys() - before.keys() == {f"{TABLE}_smoke_rounds=1{suffix}" for suffix in (".json", ".md", ".svg")}
    assert after[f"{TABLE}_smoke.svg"] == before[f"{TABLE}_smoke.svg"]
    assert "(rounds=1.svg)" not in table(f"{TABLE}_smoke_rounds=1")
    assert f"![plot]({TABLE}_smoke_rounds%3D1.svg)" in table(f"{TABLE}_smoke_rounds=1")


def test_settings_that_are_no_file_name_make_one_that_is(command: Command) -> None:
    done(command("policy.weak_view=crop", "evaluation.linear.fractions=[0.01,1.0]", "--only", "gray"))
    (file,) = Path("results").glob("*.json")
    assert file.name.startswith(f"{TABLE}_smoke_evaluation.linear.fractions=-0.01-1.0-_policy.weak_view=crop-")


def test_finished_cells_stay_when_fewer_are_ordered(command: Command) -> None:
    done(command("--seeds", "2"))
    whole = table(f"{TABLE}_smoke")
    assert "not run" not in whole
    assert "over 2 seeds" in whole
    for words in (["--only", "gray"], ["--only", "gray", "--seeds", "2"]):
        done(command(*words, "--runs", "elsewhere"))
        assert table(f"{TABLE}_smoke").count("7.0 ± 7.1") == whole.count("7.0 ± 7.1") > 0
        assert "over 2 seeds" in table(f"{TABLE}_smoke")
        assert f"`sofed reproduce {TABLE} --scale smoke --seeds 2` makes the whole table" in table(f"{TABLE}_smoke")
        assert "not run" not in table(f"{TABLE}_smoke")
    drawn = Path(f"results/{TABLE}_smoke.svg").read_text()
    assert drawn.count("Gray scale") > 0
    assert drawn.count("Horizontal flipping") > 0


def test_cells_of_one_table_may_run_in_two_terminals(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second order begins and ends while the first one's only cell is running."""
    beside = ["gray"]

    def simulated_beside(overrides: Sequence[str]) -> None:
        while beside:
            done(command("--only", beside.pop()))
        simulated(overrides)

    monkeypatch.setattr("sofed_flwr.launch.run.run_simulation", simulated_beside)
    done(command("--only", "flip"))
    accuracies = table(f"{TABLE}_smoke").split("Difference to")[0]
    rows = {line.split(" | ")[0].strip("| "): line for line in accuracies.splitlines() if " | " in line}
    assert "not run" not in rows["Horizontal flipping"] + rows["Gray scale"]
    assert "not run" in rows["Color jittering"]


def test_a_difference_is_paired_by_seed_with_students_interval() -> None:
    """Differences 10, 20, 30: mean 20, deviation 10, and 4.303 * 10 / sqrt(3) = 24.84."""
    row, first = {0: 11.0, 1: 22.0, 2: 33.0, 7: 99.0}, {0: 1.0, 1: 2.0, 2: 3.0}
    assert paired_difference(row, first) == "+20.0 ± 24.8"
    assert paired_difference({3: 1.0}, {3: 2.5}) == "-1.5"
    assert paired_difference({0: 1.0}, {1: 1.0}) == ""


def test_curves_over_seconds_go_by_the_batch_times_that_were_measured_in_turn() -> None:
    """10 steps a round at 0.5 and 0.2 s each; a row without a batch time has no curve yet."""
    losses = find_table("losses")
    both, printed = losses.rows

    def run(row: Line, seed: int, last: float) -> RunRecord:
        curve = ([0, 4], [20.0, last])
        about = {"row": row.name, "columns": ["kNN"], "seed": seed, "overrides": [], "directory": ""}
        return RunRecord(**about, seconds=1, steps_per_round=10, curves={"linear_0.1": curve, "knn": curve})

    runs = [run(both, 0, 30.0), run(both, 1, 40.0), run(printed, 0, 50.0)]
    over_seconds = list(curves(losses, runs, {both.name: 0.5, printed.name: 0.2}))
    assert [panel.title for panel in over_seconds] == ["kNN, 10% labels", "kNN, kNN"]
    assert over_seconds[1].series == {both.name: {0: 20, 20: 35}, printed.name: {0: 20, 8: 50}}
    assert (over_seconds[1].x_label, over_seconds[1].y_label) == ("seconds of one device", "accuracy (%)")
    assert next(curves(losses, runs, {})).series == {both.name: {}, printed.name: {}}


def test_a_table_over_seconds_needs_batch_times() -> None:
    columns = [{"name": "kNN", "value": "knn"}]
    with pytest.raises(ValueError, match="mine: curves over seconds need a column of batch times"):
        Table.model_validate({"name": "mine", "title": "", "columns": columns, "rows": [], "over": "seconds"})


def test_differences_are_to_the_first_row_that_was_run(command: Command) -> None:
    """Both rows of a seed have the same accuracy here."""
    done(command("--seeds", "2", "--only", "gray", "--only", "color"))
    text = table(f"{TABLE}_smoke")
    assert "not run" in next(line for line in text.splitlines() if line.startswith("| Horizontal flipping |"))
    shown = text[text.index("Difference to Gray scale, paired by seed") : text.index("![plot]")]
    assert "| Gray scale |" not in shown
    assert "+0.0 ± 0.0" in next(line for line in shown.splitlines() if line.startswith("| Color jittering |"))


def test_a_row_of_few_seeds_costs_the_others_no_interval(command: Command) -> None:
    done(command("--only", "flip"))
    done(command("--seeds", "2", "--only", "gray", "--only", "color"))
    shown = table(f"{TABLE}_smoke").split("Difference to ")[1]
    assert shown.startswith("Gray scale, paired by seed")
    assert "+0.0 ± 0.0" in next(line for line in shown.splitlines() if line.startswith("| Color jittering |"))
    assert "| Horizontal flipping | +0.0 |" in shown


def test_a_cell_that_fails_when_it_is_run_again_keeps_its_result(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(command())

    def fails(overrides: Sequence[str]) -> None:
        raise RunFailed("disk [/b] full\nsecond line")

    monkeypatch.setattr("sofed_flwr.launch.run.run_simulation", fails)
    failed = command("--runs", "elsewhere", "--only", "gray")
    assert failed.exit_code == 1, failed.exception
    assert "1 cells failed: Gray scale, seed 0: disk [/b] full second line" in failed.output
    assert "not run" not in table(f"{TABLE}_smoke")
    assert "disk [/b] full" in table(f"{TABLE}_smoke")
    monkeypatch.setattr("sofed_flwr.launch.run.run_simulation", simulated)
    done(command("--runs", "elsewhere", "--only", "gray"))
    assert "disk" not in table(f"{TABLE}_smoke")


def test_a_table_of_failures_is_a_table(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(overrides: Sequence[str]) -> None:
        raise RunFailed("no more disk")

    monkeypatch.setattr("sofed_flwr.launch.run.run_simulation", fails)
    failed = command("--only", "gray")
    assert failed.exit_code == 1, failed.exception
    assert failed.stderr == "sofed: 1 cells failed: Gray scale, seed 0: no more disk\n"
    assert Path(f"results/{TABLE}_smoke.svg").read_text().startswith("<svg")


def test_a_cell_of_settings_the_table_no_longer_has_does_not_stay(command: Command) -> None:
    done(command())
    file = Path(f"results/{TABLE}_smoke.json")
    content = json.loads(file.read_text())
    content["runs"][0]["overrides"].append("optimizer.lr=7")
    file.write_text(json.dumps(content))
    done(command("--only", "gray", "--runs", "elsewhere"))
    assert table(f"{TABLE}_smoke").count("not run") > 0


HOSTILE_RESULTS = {
    "empty": lambda content: "",
    "torn": lambda content: json.dumps(content)[:-100],
    "list": lambda content: "[]",
    "deep": lambda content: "[" * 100_000,
    "no text": lambda content: "\x00\x00",
    "runs of words": lambda content: json.dumps(content | {"runs": "many"}),
    "huge value": lambda content: json.dumps(_first(content, values={"1 % labels": 10**400})),
    "infinite": lambda content: json.dumps(_first(content, seconds=float("inf"))),
    "seed of words": lambda content: json.dumps(_first(content, seed="zero")),
    "huge seed": lambda content: json.dumps(_first(content, seed=10**9)),
    "curves of two lengths": lambda content: json.dumps(_first(content, curves={"linear_1.0": [[1, 2], [3.0]]})),
    "batch seconds": lambda content: json.dumps(content | {"batch_seconds": {"a": -1}}),
}


def _first(content: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return content | {"runs": [content["runs"][0] | changes, *content["runs"][1:]]}


RUN = {"row": "a", "columns": ["b"], "seed": 0, "overrides": [], "directory": "c", "seconds": 1.0}


@pytest.mark.parametrize("kind", HOSTILE_RESULTS)
def test_a_damaged_file_of_results_is_named(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"runs": [RUN, RUN]}))
    assert [run.finished for run in read_earlier(file).runs] == [True, True]
    file.write_text(HOSTILE_RESULTS[kind]({"runs": [RUN, RUN]}))
    with pytest.raises(DamagedFileError, match=rf"^{file} is damaged .* move it away, or choose another --results"):
        read_earlier(file)


def test_a_damaged_file_of_results_is_not_written_over(command: Command) -> None:
    file = Path(f"results/{TABLE}_smoke.json")
    file.parent.mkdir()
    file.write_text('{"runs": [')
    for words in ([], ["--plan"]):
        refused = command("--only", "gray", *words)
        assert refused.exit_code == 2, (refused.output, refused.exception)
        assert refused.stderr.startswith(f"sofed: {file} is damaged")
        assert refused.stderr.count("\n") == 1
    assert file.read_text() == '{"runs": ['
    assert [path.name for path in Path.cwd().rglob("*")] == ["results", file.name]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"linear": 3}', '{"linear": {"1.0": "x"}, "untrained": {}, "seconds": 1}', "[" * 100_000],
)
def test_a_torn_summary_is_none(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "summary.json").write_text(text)
    assert read_summary(tmp_path / "summary.json") is None
    assert "summary.json is damaged; the run counts as unfinished" in caplog.text


def test_a_run_with_a_torn_summary_is_run_again(command: Command) -> None:
    done(command("--only", "gray"))
    (summary,) = Path("outputs/reproduce").glob("*/summary.json")
    summary.write_text("{")
    assert "1 cells, 0 done, 1 to run" in done(command("--only", "gray", "--plan"))
    done(command("--only", "gray"))
    assert json.loads(summary.read_text())["seconds"] == 60.0


def test_a_plan_says_what_is_done_and_how_long_the_rest_takes(command: Command) -> None:
    planned = done(command("--plan"))
    assert "4 cells, 0 done, 4 to run: about 96 s (by a stated rate, no run is finished yet)" in planned.replace(
        "2 min", "96 s"
    )
    done(command("--only", "gray"))
    planned = done(command("--plan", "--seeds", "2"))
    assert "done           60 s  Gray scale; 1 % labels (+ 2); seed 0" in planned
    assert "to run         60 s  Gray scale; 1 % labels (+ 2); seed 1" in planned
    assert "8 cells, 1 done, 7 to run: about 7 min (as 1 finished runs took)" in planned
    assert not list(Path("results").glob("*_seeds*"))


def test_a_run_begins_with_its_plan_and_paths_are_printed_as_they_are(command: Command) -> None:
    said = done(command("--only", "gray", "--results", "re[b]sults"))
    assert said.startswith("1 cells, 0 done, 1 to run: about")
    assert f"re[b]sults/{TABLE}_smoke.md, .json, .svg" in said


def test_the_list_names_every_table_and_runs_nothing(command: Command) -> None:
    listed = done(CliRunner().invoke(app, ["reproduce", "--list"]))
    assert "table1_frameworks      48 cells  Table 1: accuracy (%)" in listed
    assert sorted(line.split()[0] for line in listed.splitlines()) == conf_names("experiment")
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name a table; sofed reproduce --list shows them"),
        ([TABLE], "--scale is missing; choose one of paper (days on a GPU box), small (about 15 minutes per cell)"),
        ([TABLE, "--scale", "tiny"], "--scale=tiny: choose one of paper"),
        ([TABLE, "--scale", "smoke", "rounds"], "rounds: not an override"),
        ([TABLE, "--scale", "smoke", "~policy"], "policy"),
        ([TABLE, "--scale", "smoke", "rounds=many"], "rounds=many"),
    ],
)
def test_an_order_that_cannot_be_is_one_sentence_and_starts_nothing(
    words: list[str], sentence: str, command: Command
) -> None:
    refused = CliRunner().invoke(app, ["reproduce", *words])
    assert refused.exit_code == 2, (refused.output, refused.exception)
    assert sentence in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not list(Path.cwd().iterdir())
