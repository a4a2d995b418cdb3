"""Every kind of file that a user can hand us, mutated: a command ends with 0 to 3 and one line at most, in time.

A failure names its kind, seed and file; `SOFED_FUZZ_FIRST=SEED pytest tests/cli/test_fuzz.py -k KIND` begins with that
seed. Keys and certificates are made anew by every test run: of those, the file is what repeats a failure.
A new kind of file is one line in KINDS.
"""

import itertools
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random, randrange
from types import FrameType
from typing import Any

import numpy as np
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from sofed_flwr.classifier.model_directory import write_model
from sofed_flwr.cli.main import app
from sofed_flwr.config.compose import compose
from sofed_flwr.core.errors import RunFailed
from sofed_flwr.encoder import load_encoder
from sofed_flwr.fleet.doctor import machine, network
from sofed_flwr.fleet.doctor.finding import Finding
from sofed_flwr.fleet.provision.build import provision
from sofed_flwr.storage.tensor_file import to_bytes
from tests.analysis.test_reproduce_results import TABLE, simulated
from tests.datasets.test_datasets import save_npz
from tests.datasets.test_folder import save_image
from tests.support import mutations
from tests.support.federation import federate
from tests.support.models import classifier_of, encoder_of

SECONDS = 0.4
"""Of a kind, in every test run; a soak takes a minute, from a seed of its own."""
FEWEST = 2
LONGEST_S = 120
"""Seconds until a command is taken to hang; a busy machine needs some."""
SMALL = ["clients=2", "buffer=4", "rounds=1", "encoder.width=4"]

OWN = "# Mine.\ndefaults: [fifo]\n_target_: mine.Mine\nnewest: [1, {a: 2}]  # a comment\ninner: {_target_: mine.X}\n"

Words = Callable[[Path], list[str]]


@dataclass(frozen=True)
class Kind:
    """A file below the folder of valid ones, the command that reads it, and how an attacker would edit it."""

    file: str
    command: Words
    edit: mutations.Mutation = mutations.damaged


def run_on(dataset: str, path: str) -> Words:
    return lambda home: ["run", f"dataset={dataset}", f"dataset.path={home / path}", f"out={home / 'new'}", *SMALL]


def evaluate(home: Path) -> list[str]:
    return ["evaluate", str(home / "run" / "encoder.safetensors"), "scale=smoke"]


def pretrained(home: Path) -> list[str]:
    return ["run", "scale=smoke", f"pretrained={home / 'weights.safetensors'}", f"out={home / 'new'}"]


def fit(home: Path) -> list[str]:
    return ["fit", str(home / "run"), str(home / "labels.csv"), "--out", str(home / "fitted")]


def predict(home: Path) -> list[str]:
    return ["predict", str(home / "model"), str(home / "images" / "ant")]


def report(home: Path) -> list[str]:
    return ["report", str(home / "run"), "--no-images"]


def inspect(home: Path) -> list[str]:
    return ["inspect", str(home / "run" / "devices" / "0"), "--out", str(home / "inspect.html")]


def resume(home: Path) -> list[str]:
    return ["run", f"resume={home / 'run'}", "rounds=3"]


def finished(home: Path) -> list[str]:
    return ["run", f"resume={home / 'run'}"]


def plan(home: Path) -> list[str]:
    places = ["--results", str(home / "results"), "--runs", str(home / "runs")]
    return ["reproduce", TABLE, "--scale", "smoke", "--only", "gray", *places]


def doctor(site: str) -> Words:
    return lambda home: ["doctor", "--site", str(home / "site" / site)]


def explain(home: Path) -> list[str]:
    return ["config", "policy.newest", "--config-dir", str(home / "own")]


RESULTS = f"results/{TABLE}_smoke.json"
KINDS = {
    "npz": Kind("data.npz", run_on("npz", "data.npz"), mutations.edit_npz),
    "image": Kind("images/ant/0.png", run_on("folder", "images")),
    "encoder": Kind("run/encoder.safetensors", evaluate, mutations.edit_tensors),
    "pretrained": Kind("weights.safetensors", pretrained),
    "labels": Kind("labels.csv", fit, mutations.edit_rows),
    "model-config": Kind("model/config.json", predict, mutations.edit_json),
    "model-weights": Kind("model/model.safetensors", predict, mutations.edit_tensors),
    "config-report": Kind("run/config.yaml", report, mutations.edit_yaml),
    "config-resume": Kind("run/config.yaml", resume, mutations.edit_yaml),
    "metrics-report": Kind("run/metrics.jsonl", report, mutations.edit_lines),
    "metrics-resume": Kind("run/metrics.jsonl", resume, mutations.edit_lines),
    "summary-report": Kind("run/summary.json", report, mutations.edit_json),
    "summary-resume": Kind("run/summary.json", resume, mutations.edit_json),
    "summary-finished": Kind("run/summary.json", finished, mutations.edit_json),
    "summary-reproduce": Kind("runs/CELL/summary.json", plan, mutations.edit_json),
    "trace": Kind("run/devices/0/scores_round_1.json", report, mutations.edit_json),
    "device-state": Kind("run/devices/0/00000001.safetensors", inspect, mutations.edit_tensors),
    "checkpoint": Kind("run/checkpoint/00000002.safetensors", resume, mutations.edit_tensors),
    "own-yaml": Kind("own/policy/mine.yaml", explain, mutations.edit_yaml),
    "results": Kind(RESULTS, plan, mutations.edit_json),
    "env-device": Kind("site/device-0/sofed.env", doctor("device-0"), mutations.edit_settings),
    "env-server": Kind("site/server/sofed.env", doctor(""), mutations.edit_settings),
    "authority": Kind("site/device-0/ca.crt", doctor("device-0")),
    "certificate": Kind("site/server/server.crt", doctor("")),
    "key": Kind("site/device-0/key", doctor("device-0")),
}


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of everything, as this project writes it."""
    home = tmp_path_factory.mktemp("valid")
    images = np.random.default_rng(0).integers(256, size=(16, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(16) % 2
    save_npz(home / "data.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    for name, number in itertools.product(("ant", "bee"), range(8)):
        save_image(home / "images" / name / f"{number}.png", number)
        with (home / "labels.csv").open("a") as rows:
            rows.write(f"images/{name}/{number}.png,{name}\n")
    with pytest.MonkeyPatch.context() as cache:
        cache.setenv("SOFED_CACHE", str(home / "cache"))
        config = compose(["scale=smoke", "trace={device:0,round:1,iterations:2}", f"out={home / 'run'}"])
        federate(config).finish(config.encoder, config.facts)
    weights = load_encoder(home / "run" / "encoder.safetensors").backbone.state_dict()
    (home / "weights.safetensors").write_bytes(to_bytes(weights))
    write_model(home / "model", classifier_of(encoder_of()))
    provision(home / "site", ["127.0.0.1"], 1)
    (home / "own" / "policy").mkdir(parents=True)
    (home / "own" / "policy" / "mine.yaml").write_text(OWN)
    with pytest.MonkeyPatch.context() as flower:
        flower.setattr("sofed_flwr.launch.run.run_simulation", simulated)
        done = CliRunner().invoke(app, plan(home))
        assert done.exit_code == 0, done.output
    return home


@pytest.fixture(autouse=True)
def _only_the_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing that takes seconds and reads no file of the user: Flower, the doctor's look at torch and the server."""

    def checked(*_: object, **__: object) -> None:
        raise RunFailed("checked")

    monkeypatch.setattr("sofed_flwr.launch.run.simulate", checked)
    monkeypatch.setattr(machine, "check_torch", lambda: Finding("torch", "ok", "", ""))
    monkeypatch.setattr(network, "check_registered", lambda site: Finding("registered", "ok", "", ""))
    monkeypatch.setenv("SOFED_CACHE", str(tmp_path / "cache"))


class Hangs(BaseException):  # no command may catch it
    """A command took too long."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fault_of(command: typer.Typer, words: Sequence[str], seconds: int = LONGEST_S) -> str | None:
    """What is wrong with the way a command ends, or None."""
    try:
        with at_most(seconds):
            result = CliRunner().invoke(command, list(words))
    except Hangs:
        return f"still running after {seconds} s"
    return _fault(result)


def _fault(result: Result) -> str | None:
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        return "".join(traceback.format_exception(error))
    if result.exit_code not in range(4):
        return f"exit code {result.exit_code}"
    if result.stderr.count("\n") > 1 or "Traceback" in result.output:
        return f"more than one line: {result.stderr}"
    if "\x1b" in result.output:
        return f"control characters: {result.output!r}"
    return None


def fuzz(name: str, home: Path, first: int, seconds: float) -> int:
    """Mutate and run until the time is over; how often."""
    kind = KINDS[name]
    file = _file(home, kind.file)
    content, end = file.read_bytes(), time.monotonic() + seconds
    for count in itertools.count():
        if count >= FEWEST and time.monotonic() > end:
            return count
        random = Random(f"{name} {first + count}")
        mutate = random.choice([mutations.damaged, kind.edit])
        file.write_bytes(mutate(content, random))
        if fault := fault_of(app, kind.command(home)):
            pytest.fail(f"kind {name}, seed {first + count}, by {mutate.__name__}, {file}: {fault}")
    raise AssertionError


def _file(home: Path, pattern: str) -> Path:
    (file,) = home.glob(pattern.replace("CELL", "*"))
    return file


@pytest.mark.parametrize("name", KINDS)
def test_a_mutated_file_ends_a_command_with_one_line_at_most(name: str, valid: Path, tmp_path: Path) -> None:
    home = shutil.copytree(valid, tmp_path / "home")
    assert fault_of(app, KINDS[name].command(home)) is None, "the valid file"
    fuzz(name, home, int(os.environ.get("SOFED_FUZZ_FIRST", "0")), SECONDS)


@pytest.mark.soak
@pytest.mark.parametrize("name", KINDS)
def test_for_longer_and_from_a_seed_of_its_own(name: str, valid: Path, tmp_path: Path) -> None:
    first = int(os.environ.get("SOFED_FUZZ_FIRST", randrange(2**32)))
    count = fuzz(name, shutil.copytree(valid, tmp_path / "home"), first, 60)
    print(f"{name}: {count} files from seed {first}")


def test_every_kind_of_end_that_is_a_fault_is_noticed() -> None:
    faulty = typer.Typer()

    @faulty.command()
    def end(how: str) -> None:
        match how:
            case "traceback":
                raise KeyError("weights")
            case "code":
                raise typer.Exit(4)
            case "lines":
                typer.echo("sofed: one\ntwo", err=True)
                raise typer.Exit(2)
            case "escape":
                print("\x1b[2J")  # typer's own echo would strip it
            case "hang":
                time.sleep(60)
            case "sentence":
                typer.echo("sofed: one", err=True)
                raise typer.Exit(2)

    faults: dict[str, Any] = {
        how: fault_of(faulty, [how], seconds=1) for how in ("traceback", "code", "lines", "escape", "hang")
    }
    assert all(faults.values()), faults
    assert "KeyError: 'weights'" in faults["traceback"]
    assert faults["hang"] == "still running after 1 s"
    assert fault_of(faulty, ["sentence"]) is None


@pytest.mark.parametrize("mutate", [*mutations.ACCIDENTS, mutations.edit_json, mutations.edit_yaml])
def test_a_mutation_depends_on_its_seed_alone_and_changes_something(mutate: mutations.Mutation) -> None:
    content = b'{"a": [1, 2.5, {"b": "text"}], "c": null}'
    results = [mutate(content, Random(seed)) for seed in (*range(9), *range(9))]
    assert results[:9] == results[9:]
    assert set(results) - {content}
