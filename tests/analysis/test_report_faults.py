"""Run directories that somebody else wrote, or a failing disk: the report is made around damage, or one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sofed_flwr.analysis.report.read import read_run
from sofed_flwr.cli.main import app
from tests.analysis.test_report import cells, make_run, page_of


def row(**changes: Any) -> str:
    return json.dumps({"round": 1, "name": "loss", "value": 2.0} | changes)


BAD_ROWS = [
    "[]",
    "7",
    "null",
    '"row"',
    '{"round": 1}',
    row(round="1"),
    row(round=None),
    row(round=-1),
    row(round=1.5),
    row(round=10**400),
    row(name=None),
    row(name=["loss"]),
    row(name="linear_1.2.3"),
    row(name="linear_." + "9" * 400),
    row(value="2.0"),
    row(value=[1]),
    row(value=float("nan")),
    row(value=float("inf")),
    row(value=10**400),
    row(value=1e308),
    row(value=-1.7e308),
    row(name="seconds", value=1e300),
    row(device="0"),
    row(device=None),
    row(device=[0]),
    row(device=10**400),
    row(device=0, name="dropped", reason=["why"]),
    row(device=0, name="dropped", value=1, reason="\ud800 \x1b[2J [/b]"),
]


def test_bad_rows_are_left_out_and_the_report_is_made(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as log:
        log.writelines(f"{line}\n" for line in BAD_ROWS)
    done = CliRunner().invoke(app, ["report", str(run)])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "| run | untrained | 20.0 | 12.5 | 30.0 |" in done.output
    assert "\x1b" not in done.output


def test_a_device_whose_rows_are_lost_in_part_has_gaps(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 1)
    log = run / "metrics.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if '"discarded"' not in line))
    assert ["0", "1", "0", "2.000", "100", "–", "20.0", "1.0", "4.0", "2.00", "–"] in cells(page_of(run))


BROKEN = {
    "config.yaml": [
        "",
        "[]",
        "a: [1",
        "a: " + "[" * 3000,
        "\tx: 1",
        "!!python/object:os.system {}",
        "\x00",
        "- a\n- b",
    ],
    "metrics.jsonl": ["[" * 100000 + "\n"],
    "devices/0/scores_round_1.json": [
        "",
        "[]",
        "{",
        "[" * 100000,
        '{"device": 0, "round": 1, "interval": 2, "seen": 3, "min": [], "mean": [], "max": [], "samples": {}}',
        '{"device": 0, "round": 1, "interval": 2, "seen": [], "min": [], "mean": [], "max": [], "samples": []}',
        '{"device": [0], "round": 1, "interval": 2, "seen": [], "min": [], "mean": [], "max": [], "samples": {}}',
    ],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BROKEN.items() for text in texts])
def test_a_broken_file_is_one_sentence(name: str, text: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "r[x]n")
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).write_text(text)
    done = CliRunner().invoke(app, ["report", str(run)])
    assert done.exit_code in (0, 2), (done.output, done.exception)
    assert done.exit_code == 0 or (done.stderr.count("\n") == 1 and str(run) in done.stderr), done.stderr


@pytest.mark.parametrize("config", [{"choices": []}, {"choices": 3}, {"overrides": 7}, {"overrides": {"a": 1}}])
def test_a_configuration_of_wrong_types_is_shown_as_far_as_it_goes(config: dict[str, Any], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(make_run(tmp_path / "run", 0, **config))])
    assert done.exit_code == 0, (done.output, done.exception)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", '{"a": ' * 50000])
def test_a_torn_summary_does_not_make_a_run_finished(text: str, tmp_path: Path, caplog: Any) -> None:
    run = make_run(tmp_path / "run")
    (run / "summary.json").write_text(text)
    assert not read_run(run).finished
    assert f"{run / 'summary.json'} is damaged" in caplog.text


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "summary.json", "report.html"])
def test_a_directory_where_a_file_belongs_is_one_sentence(name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / name).unlink(missing_ok=True)
    (run / name).mkdir()
    done = CliRunner().invoke(app, ["report", str(run)])
    assert done.exit_code == (0 if name == "summary.json" else 2), (done.output, done.exception)
    assert done.stderr.count("\n") == (done.exit_code == 2)


def test_a_link_to_itself_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "run")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)


def test_foreign_words_cannot_steer_the_terminal(tmp_path: Path) -> None:
    values = ("\x1b]0;owned\x07", "\ud800", "plain")
    runs = [str(make_run(tmp_path / str(n), 0, overrides=["x=1"], x=value)) for n, value in enumerate(values)]
    done = CliRunner().invoke(app, ["report", *runs, "--out", str(tmp_path / "report.html")])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "\x1b" not in done.output + (tmp_path / "report.md").read_text()
