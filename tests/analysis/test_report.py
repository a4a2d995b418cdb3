"""The report: numbers from hand-written rows, foreign text that stays text, runs that are not finished."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from sofed_flwr.analysis.charts.panels import Lines
from sofed_flwr.analysis.charts.svg import chart
from sofed_flwr.analysis.report.costs import split
from sofed_flwr.analysis.report.labels import label
from sofed_flwr.analysis.report.page import write_report
from sofed_flwr.analysis.report.read import Run, read_run
from sofed_flwr.cli.main import app
from sofed_flwr.storage.metrics_log import RunLog

HOSTILE = '<script>alert("&")</script> $x$ | `y`'


def make_run(path: Path, rounds: int = 3, finished: bool = True, **config: Any) -> Path:
    """Two devices; the second one is dropped in round 2. Every number below is made up, so sums are easy to check."""
    path.mkdir(parents=True)
    plain = {"seed": 0, "rounds": 3, "clients": 2, "choices": {"policy": "importance"}, "overrides": []}
    (path / "config.yaml").write_text(yaml.safe_dump(plain | config))
    log = RunLog(path / "metrics.jsonl")
    log.write(0, {"knn": 20.0, "linear_1.0": 30.0, "linear_0.01": 12.5, "feature_std": 0.3, "seconds": 1.0})
    for number in range(1, rounds + 1):
        for device in (0, 1):
            if (number, device) == (2, 1):
                log.write(number, {"dropped": 1}, device, HOSTILE)
                continue
            counts = {"seen": 100, "discarded": 90 - 30 * device, "held": 50, "rescored": 10, "bytes_up": 2e6}
            spent = {"seconds_scoring": 1.0 + device, "seconds_training": 4.0}
            log.write(number, {"loss": 1.0 + number, **counts, **spent}, device)
        log.write(number, {"loss": 1.0 + number, "discard_ratio": 0.75, "rescoring_ratio": 0.2, "bytes_up": 2e6})
        log.write(number, {"knn": 20.0 + 10 * number, "linear_1.0": float("nan"), "linear_0.01": 40.25})
        log.write(number, {"seconds": 10.0})
    if finished:
        (path / "summary.json").write_text('{"seconds": 31.0, "untrained": {}}')
    return path


def make_trace(run: Path, device: int, number: int, **changes: Any) -> None:
    samples = {"17": [0.5, 0.6, 0.5], "40": [0.5, None, None]}
    lists = {"seen": [16, 32, 48], "min": [0.1] * 3, "mean": [0.4] * 3, "max": [0.9] * 3, "samples": samples}
    folder = run / "devices" / str(device)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"device": device, "round": number, "interval": 20} | lists | changes
    (folder / f"scores_round_{number}.json").write_text(json.dumps(content))


def page_of(*runs: Path) -> str:
    out = runs[0].parent / "page.html"
    write_report(runs, out)
    return out.read_text()


def cells(page: str) -> list[list[str]]:
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page) if "<td" in row]


def test_the_tables_hold_the_numbers_of_the_metrics_log(tmp_path: Path) -> None:
    rows = cells(page_of(make_run(tmp_path / "run")))
    assert ["run", "finished", "–", "–", "–", "importance", "–", "2", "0", "3 of 3", "31"] in rows
    assert ["run", "untrained", "20.0", "12.5", "30.0"] in rows
    assert ["run", "round 3", "50.0", "40.2", "–"] in rows
    reason = "&lt;script&gt;alert(&quot;&amp;&quot;)&lt;/script&gt; $x$ | `y`"
    assert ["0", "3", "0", "3.000", "300", "90.0", "20.0", "3.0", "12.0", "6.00", "–"] in rows
    assert ["1", "2", "1", "3.000", "200", "60.0", "20.0", "4.0", "8.0", "4.00", reason] in rows


def test_a_round_is_split_by_its_slowest_device(tmp_path: Path) -> None:
    parts = split(read_run(make_run(tmp_path / "run")))
    assert parts == {"scoring": [0, 2, 1, 2], "training": [0, 4, 4, 4], "rest": [1, 4, 5, 4]}


def test_every_section_is_there_and_the_page_asks_nobody_for_anything(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    make_trace(run, 0, 2)
    make_trace(run, 0, 11)
    page = page_of(run)
    titles = ["Accuracy", "Learning curves", "Loss", "Feature spread", "Discard ratio", "Rescoring ratio"]
    for title in [*titles, "Score trends", "How fast images", "Time per round", "Upload", "Devices", "Configuration"]:
        assert f"<h2>{title}" in page
    assert page.count("<svg ") == 3 + 4 + 1 + 2 + 1 + 2
    assert "device 0, round 11, T = 20" in page
    assert "round 2, T" not in page
    assert ">i-17<" in page
    assert ">i-40<" not in page
    foreign = re.sub(r' xmlns(:\w+)?="http://www\.w3\.org/[\w/]+"', "", page)
    assert not re.search(r"https?:|src=|@import|<link|<script|url\((?!#)|href=\"(?!#)", foreign)


def test_equal_runs_give_equal_bytes(tmp_path: Path) -> None:
    pages = []
    for name in ("first", "second"):
        make_run(tmp_path / name / "run")
        pages.append(page_of(tmp_path / name / "run").encode())
    assert pages[0] == pages[1]


def test_foreign_text_stays_text_in_page_chart_and_markdown(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / name, overrides=[f"dataset.path={value}"], dataset={"path": value})
        for name, value in (("a", HOSTILE), ("b", "_plain"))
    ]
    page = page_of(*runs)
    assert "<script" not in page
    assert "alert(" in page
    assert "dataset.path=_plain" in page
    markdown = (tmp_path / "page.md").read_text()
    assert r"\<script\>" in markdown
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in markdown.splitlines()} == {6}


@pytest.mark.parametrize("rounds", [0, 1])
def test_an_unfinished_run_shows_what_it_has(tmp_path: Path, rounds: int) -> None:
    page = page_of(make_run(tmp_path / "run", rounds, finished=False))
    assert "unfinished" in page
    assert f"{rounds} of 3" in page
    assert ("<h2>Loss" in page) == (rounds > 0)
    assert ["run", "untrained", "20.0", "12.5", "30.0"] in cells(page)


def test_a_run_that_has_logged_nothing_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", finished=False)
    (run / "metrics.jsonl").unlink()
    page = page_of(run)
    assert "No accuracy has been logged" in page
    assert "<svg" not in page


def test_runs_are_labelled_by_what_differs() -> None:
    def run(name: str, *overrides: str, **config: Any) -> Run:
        return Run(
            name, {"overrides": [*overrides, f"out={name}", "rounds=5"], "rounds": 5, **config}, "", [], True, []
        )

    lazy = {"policy": {"lazy_interval": 4}, "choices": {"policy": "importance"}}
    runs = [
        run("a", "policy.lazy_interval=4", seed=0, **lazy),
        run("b", "policy=fifo", "seed=1", seed=1, policy={}, choices={"policy": "fifo"}),
    ]
    assert list(label(runs)) == ["policy=importance seed=0 policy.lazy_interval=4", "policy=fifo seed=1"]
    assert list(label([*runs, runs[1]]))[1:] == ["policy=fifo seed=1 (b) (2)", "policy=fifo seed=1 (b) (3)"]
    assert list(label(runs[:1])) == ["a"]
    traced = [run("c", f"trace.round={number}", trace={"round": number}) for number in (1, 2)]
    assert list(label(traced)) == ["c (c) (1)", "c (c) (2)"], "nothing in a report depends on a trace"


def test_a_series_without_points_keeps_its_colour_for_the_others_sake() -> None:
    drawn = chart(Lines({"absent": {}, "_present": {1: 3, 2: 4}}, x_label="round", y_label="loss"))
    assert "absent" not in drawn
    assert ">_present<" in drawn
    assert "#d55e00" in drawn
    assert "#0072b2" not in drawn


def test_the_command_writes_beside_the_run_and_prints_the_table(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    done = CliRunner().invoke(app, ["report", str(run)])
    assert done.exit_code == 0, done.output
    assert "| run | untrained | 20.0 | 12.5 | 30.0 |" in done.output
    assert (run / "report.md").read_text() in done.output
    assert (run / "report.html").is_file()


def test_several_runs_are_written_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [str(make_run(tmp_path / name, seed=seed, overrides=["seed=1"])) for seed, name in enumerate("ab")]
    assert CliRunner().invoke(app, ["report", *runs]).exit_code == 0
    assert ["seed=1", "untrained", "20.0", "12.5", "30.0"] in cells((tmp_path / "report.html").read_text())


def test_what_is_no_run_is_refused_in_one_sentence(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    done = CliRunner().invoke(app, ["report", str(run), str(tmp_path)])
    assert done.exit_code == 2
    assert f"sofed: {tmp_path}: not a run directory, config.yaml is missing" in done.output
    assert "ends in .html" in CliRunner().invoke(app, ["report", str(run), "--out", "page.md"]).output
    make_trace(run, 0, 3, mean=[0.4])
    done = CliRunner().invoke(app, ["report", str(run)])
    assert (
        done.exit_code,
        "scores_round_3.json is damaged" in done.output,
    ) == (2, True)


def test_without_matplotlib_the_refusal_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in [
        name for name in sys.modules if name.startswith(("sofed_flwr.analysis.report.", "sofed_flwr.analysis.charts"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    done = CliRunner().invoke(app, ["report", str(make_run(tmp_path / "run"))])
    assert done.exit_code == 2
    assert "pip install 'sofed-flwr[report]'" in done.output
