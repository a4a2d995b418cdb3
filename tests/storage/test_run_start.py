"""What a run directory may look like when a run continues there: damaged, emptied, finished, full, another run's."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sofed_flwr.analysis.report.read import read_run
from sofed_flwr.build import build_server, check
from sofed_flwr.config.compose import compose
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.launch import run as running
from sofed_flwr.launch.progress import Tail
from sofed_flwr.server.rounds import Server
from sofed_flwr.server.summary import summarise
from sofed_flwr.storage.generations import Generation, Store
from sofed_flwr.storage.metrics_log import read_rows
from sofed_flwr.storage.run_directory import RunDirectory
from tests.support.federation import federate, rounds, same

Smoke = Callable[..., RunConfig]
DAMAGED = [
    b"not json\n",
    b"[1, 2]\n",
    b'{"round": "x", "name": 3, "value": []}\n',
    b"\xff\xfe\n",
    b"\0" * 40 + b"\n",
    b"{}\n",
]


def resume(config: RunConfig, *overrides: str) -> RunConfig:
    return compose([f"resume={config.out}", *overrides])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def finished(config: RunConfig) -> Server:
    server = federate(config)
    server.finish(config.encoder, config.facts)
    return server


def test_a_damaged_line_of_the_metrics_log_costs_that_line(smoke: Smoke, caplog: pytest.LogCaptureFixture) -> None:
    config = smoke("rounds=3", "evaluation=none")
    log = federate(config, upto=2).directory.log.path
    rows, lines = read_rows(log), log.read_bytes().splitlines(keepends=True)
    for damage in [*DAMAGED, b"".join(DAMAGED)]:
        log.write_bytes(b"".join([*lines[:3], damage, *lines[3:], b'{"round": 2, "na']))
        caplog.clear()
        assert read_rows(log) == rows
        (warning,) = [record.getMessage() for record in caplog.records]
        assert warning.split(": ")[1] in ("1 damaged line is left out", f"{len(DAMAGED)} damaged lines are left out")
        assert read_run(log.parent).rows == rows
        assert summarise(read_rows(log), {}) == summarise(rows, {})
        tail = Tail(log)
        tail._offset = 0
        assert tail.rows() == rows
    server = build_server(resume(config))
    assert server.committed == 2
    rounds(server, config, upto=3)
    assert {row["round"] for row in read_rows(log)} == {0, 1, 2, 3}


def test_without_a_readable_checkpoint_resume_refuses_and_restart_begins_again(smoke: Smoke) -> None:
    config = smoke("evaluation=none")
    first = federate(config)
    for file in (first.directory.path / "checkpoint").iterdir():
        file.write_bytes(b"")
    before = contents(first.directory.path)
    with pytest.raises(ConfigError, match=r"no checkpoint that can be read.*restart=true begins again") as refusal:
        check(resume(config))
    assert "\n" not in str(refusal.value)
    with pytest.raises(ConfigError, match="restart=true"):
        build_server(resume(config))
    assert contents(first.directory.path) == before

    again = build_server(resume(config, "restart=true"))
    assert (again.committed, again.run != first.run) == (-1, True)
    kept = contents(first.directory.path / "earlier-1")
    assert {name: before[name] for name in kept} == kept
    assert {"metrics.jsonl", "config.yaml"} <= kept.keys()
    rounds(again, config, upto=2)
    assert same(again.shared, first.shared), "the simulated devices began again, too"
    assert build_server(resume(config)).committed == 2, "restart=true is meant once"


def test_a_run_stopped_before_its_first_commit_just_begins(smoke: Smoke) -> None:
    config = smoke("evaluation=none")
    build_server(config)
    assert build_server(resume(config)).committed == -1


def test_a_checkpoint_folder_that_was_deleted_is_no_first_start(smoke: Smoke) -> None:
    config = smoke("evaluation=none")
    server = federate(config)
    shutil.rmtree(server.directory.path / "checkpoint")
    with pytest.raises(ConfigError, match="restart=true"):
        build_server(resume(config))
    assert {row["round"] for row in read_rows(server.directory.log.path)} == {0, 1, 2}


def test_a_checkpoint_without_its_configuration_is_not_continued_in_silence(smoke: Smoke) -> None:
    config = smoke("evaluation=none")
    server = federate(config)
    server.directory.config.unlink()
    before = contents(server.directory.path)
    for begin in (check, build_server):
        with pytest.raises(ConfigError, match=r"checkpoint.*without config\.yaml"):
            begin(smoke("evaluation=none"))
    with pytest.raises(ConfigError, match=r"config\.yaml is missing"):
        resume(config)
    assert contents(server.directory.path) == before


def test_the_checkpoint_of_another_run_is_refused(smoke: Smoke) -> None:
    config = smoke("evaluation=none")
    mine, other = federate(config), federate(smoke("seed=1", "evaluation=none", out="other"))
    shutil.copytree(other.directory.path / "checkpoint", mine.directory.path / "checkpoint", dirs_exist_ok=True)
    before = contents(mine.directory.path)
    with pytest.raises(ConfigError, match="another run"):
        build_server(resume(config))
    assert contents(mine.directory.path) == before


def test_the_checkpoint_of_another_model_is_refused(smoke: Smoke) -> None:
    config = smoke("rounds=3", "evaluation=none")
    server = federate(config, upto=1)
    forced = resume(config, "encoder.width=8", "force=true")
    before = contents(server.directory.path)
    with pytest.raises(ConfigError, match="another model"):
        build_server(forced)
    assert contents(server.directory.path) == before


@pytest.mark.parametrize("count", ["", "[/b]", float("inf"), {}, None, 1.5, True, -1])
def test_a_checkpoint_that_counts_in_anything_but_numbers_is_refused(count: object, tmp_path: Path) -> None:
    """As the fuzz test found it (`cli/test_fuzz.py`)."""
    directory = RunDirectory(tmp_path)
    directory.checkpoints.save(Generation(1, {"w": torch.zeros(1)}, {"run": "r", "counted": 1, "releases": 0}))
    assert directory.newest() is not None
    directory.checkpoints.save(Generation(1, {"w": torch.zeros(1)}, {"run": "r", "counted": 1, "releases": count}))
    with pytest.raises(ConfigError, match="not the checkpoint of a run's round 1"):
        directory.newest()


@pytest.mark.parametrize("place", ["online.0.weight", "strategy/momentum_vector/0"])
def test_a_checkpoint_that_is_not_finite_is_not_resumed(
    smoke: Smoke, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = smoke("rounds=3", "evaluation=none")
    server = federate(config, upto=1)
    store = Store(server.directory.path / "checkpoint")
    held = store.newest()
    assert held is not None
    name = place if "/" in place else next(iter(server.shared))
    bad = {**held.tensors, name: torch.full_like(held.tensors.get(name, torch.zeros(1)), float("nan"))}
    store.save(Generation(2, bad, held.meta))
    again = build_server(resume(config))
    assert again.committed == 1
    assert "not finite" in caplog.text


def test_a_state_that_is_not_finite_is_never_committed(smoke: Smoke) -> None:
    config = smoke("evaluation=none")
    server = federate(config, upto=1)
    name = next(iter(server.shared))
    server.shared = {**server.shared, name: torch.full_like(server.shared[name], float("inf"))}
    with pytest.raises(AssertionError, match="not finite"):
        server.close_round(2)
    assert build_server(resume(config)).committed == 1


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "privacy.jsonl", "encoder.safetensors"])
def test_a_directory_where_a_file_belongs_is_one_sentence(smoke: Smoke, name: str) -> None:
    config = smoke("rounds=3", "evaluation=none")
    path = federate(config, upto=1).directory.path / name
    path.unlink(missing_ok=True)
    path.mkdir()
    with pytest.raises(ConfigError, match=f"{name}: a directory where a file belongs"):
        check(resume(config))


def test_a_finished_run_is_left_as_it_is(smoke: Smoke, capsys: pytest.CaptureFixture[str]) -> None:
    config = smoke("evaluation=none")
    folder = finished(config).directory.path
    before = contents(folder)
    directory, summary = running.run_simulation([f"resume={folder}"])
    assert (directory.path, summary) == (folder, json.loads(before["summary.json"]))
    assert "finished" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="2 rounds are done; rounds=1 is fewer"):
        running.run_simulation([f"resume={folder}", "rounds=1"])
    with pytest.raises(ConfigError, match="2 rounds are done; rounds=1 is fewer"):
        build_server(resume(config, "rounds=1"))
    assert contents(folder) == before


def test_a_finished_run_that_goes_on_keeps_its_summary_until_the_next(
    smoke: Smoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = smoke("evaluation=none")
    folder = finished(config).directory.path
    before = (folder / "summary.json").read_bytes()

    def interrupted(*_: object) -> None:
        rounds(build_server(resume(config, "rounds=4")), config, upto=3)
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "simulate", interrupted)
    with pytest.raises(running.InterruptedRunError):
        running.run_simulation([f"resume={folder}", "rounds=4"])
    assert (folder / "summary.json").read_bytes() == before

    def ended(*_: object) -> None:
        pass

    monkeypatch.setattr(running, "simulate", ended)
    with pytest.raises(running.RunFailed, match="without a result"):
        running.run_simulation([f"resume={folder}"])


def test_a_torn_summary_is_written_again(smoke: Smoke, monkeypatch: pytest.MonkeyPatch) -> None:
    config = smoke("evaluation=none")
    server = finished(config)
    whole = server.directory.summary.read_bytes()
    server.directory.summary.write_bytes(whole[:20])

    def simulated(*_: object) -> None:
        again = build_server(resume(config))
        again.close_round(2)
        again.finish(config.encoder, config.facts)

    monkeypatch.setattr(running, "simulate", simulated)
    running.run_simulation([f"resume={server.directory.path}"])
    assert server.directory.summary.read_bytes() == whole
