"""A run directory that a stranger made: links in it are not written through, pipes and devices in it are not read."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sofed_flwr.cli.main import app
from sofed_flwr.config.compose import compose
from sofed_flwr.core.errors import RunFailed
from sofed_flwr.storage.atomic_files import write_atomically
from tests.support.federation import federate


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = compose(["scale=smoke", f"out={tmp_path_factory.mktemp('run') / 'run'}"])
    federate(config).finish(config.encoder, config.facts)
    return config.directory


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def checked(*_: object, **__: object) -> None:
        raise RunFailed("checked")

    monkeypatch.setattr("sofed_flwr.launch.run.simulate", checked)
    return Path(shutil.copytree(finished, tmp_path / "run"))


def refusal(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    return result.stderr


NAMES = ["server.lock", "flower.log", "config.yaml.tmp", "summary.json.tmp", "report.md.tmp", "metrics.jsonl"]


@pytest.mark.parametrize("command", ["resume", "report", "inspect"])
@pytest.mark.parametrize("name", [*NAMES, "devices/0/in_use.json", "devices/0", "checkpoint"])
def test_a_link_in_a_run_directory_is_refused_and_what_it_leads_to_is_left_alone(
    run: Path, tmp_path: Path, name: str, command: str
) -> None:
    place, victim = run / name, tmp_path / "victim"
    if place.is_dir():
        place.rename(victim)
        (victim / "work.tmp").write_text("mine")
    else:
        place.unlink(missing_ok=True)
        victim.write_text("mine")
    before = {path: path.read_bytes() for path in (victim, *victim.rglob("*")) if path.is_file()}
    place.symlink_to(victim)
    words = ["run", f"resume={run}", "rounds=3"] if command == "resume" else [command, str(run)]
    assert f"{place}: a link, pipe or device where a plain file belongs" in refusal(*words)
    assert {path: path.read_bytes() for path in (victim, *victim.rglob("*")) if path.is_file()} == before


@pytest.mark.parametrize("kind", ["pipe", "endless"])
@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("encoder.safetensors", "evaluate"),
        ("metrics.jsonl", "report"),
        ("devices/0/scores_round_1.json", "report"),
        ("summary.json", "resume"),
    ],
)
def test_what_never_ends_is_not_read(run: Path, name: str, command: str, kind: str) -> None:
    (run / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to("/dev/zero")
    words = ["run", f"resume={run}"] if command == "resume" else [command, str(run)]
    assert Path(name).name in refusal(*words)


def test_a_sweep_of_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "sweep.json")
    assert "sweep.json" in refusal("run", "-m", f"resume={tmp_path}")


def test_a_file_is_never_written_through_a_link_in_its_way(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "model.onnx.tmp").symlink_to(tmp_path / "victim")
    write_atomically(tmp_path / "model.onnx", b"new")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "model.onnx").read_bytes() == b"new"
    assert not (tmp_path / "model.onnx").is_symlink()


Change = Callable[[dict[str, object]], object]
CHANGES: dict[str, Change] = {
    "knn": lambda summary: summary.update(knn="abc"),
    "linear": lambda summary: summary.update(linear=[1]),
    "share": lambda summary: summary.update(linear={"\x1b[2J": 1.0}),
    "seconds": lambda summary: summary.update(seconds=None),
    "only rounds": lambda summary: [summary.pop(name) for name in list(summary) if name != "rounds"],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_summary_of_other_types_is_no_result(run: Path, change: Change) -> None:
    summary = json.loads((run / "summary.json").read_text())
    change(summary)
    (run / "summary.json").write_text(json.dumps(summary))
    result = CliRunner().invoke(app, ["run", f"resume={run}"])
    assert (result.exit_code, "checked" in result.stderr) == (1, True), "it is finished again"


@pytest.mark.parametrize("name", ["method", "last_failure", "no_privacy"])
def test_a_summary_controls_no_terminal(run: Path, name: str) -> None:
    summary = json.loads((run / "summary.json").read_text()) | {"failed_rounds": 1, "last_failure": "x"}
    summary |= {"epsilon": None, "no_privacy": "x", name: "\x1b]0;owned\x07\x1b[2J"}
    (run / "summary.json").write_text(json.dumps(summary))
    result = CliRunner().invoke(app, ["run", f"resume={run}"])
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
