"""The whole thing through real Flower processes: `sofed run`, `flwr run`, Ctrl-C, resume, failures, exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
import torch

from sofed_flwr.run_config import RunConfig
from sofed_flwr.runlog import read_rows
from sofed_flwr.store import Generation, Store
from tests.conftest import SMOKE, federate

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


def sofed(*arguments: str, timeout: float = 300) -> "subprocess.CompletedProcess[str]":
    command = [str(BIN / "sofed"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module", autouse=True)
def _one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFED_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def expected_encoder(config: RunConfig) -> bytes:
    """What the same configuration gives in one process, without Flower."""
    server = federate(config)
    server.finish(config.encoder, config.facts)
    return server.directory.encoder.read_bytes()


def wait_until(condition: Callable[[], bool], seconds: float, process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        assert process.poll() is None, f"ended early: {process.communicate()}"
        time.sleep(0.05)


def marked(name: str, value: str) -> list[psutil.Process]:
    """Processes alive whose environment has name=value."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(name) == value:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.flower
def test_one_worker_for_three_devices_and_no_flower_at_all_give_the_same_encoder_file(
    tmp_path: Path, smoke: Callable[..., RunConfig]
) -> None:
    """Two workers: the next test."""
    encoder = tmp_path / "one" / "encoder.safetensors"
    done = sofed("run", *SMOKE, "clients=3", "workers=1", f"out={encoder.parent}")
    assert done.returncode == 0, done.stderr
    assert "untrained" in done.stdout
    assert str(encoder) in done.stdout
    assert encoder.read_bytes() == expected_encoder(smoke("clients=3", out="plain"))

    summary = json.loads((encoder.parent / "summary.json").read_text())
    shared_bytes = 4 * sum(t.numel() for t in federate(smoke("clients=3", out="size"), upto=1).shared.values())
    assert shared_bytes <= summary["bytes_up_per_client_round"] <= 1.5 * shared_bytes
    judged = sofed("evaluate", str(encoder), *SMOKE)
    assert judged.returncode == 0, judged.stderr
    assert f"{summary['knn']:.2f}" in judged.stdout


@pytest.mark.flower
def test_ctrl_c_leaves_no_process_and_the_run_resumes_to_the_encoder_it_would_have_given(
    tmp_path: Path, smoke: Callable[..., RunConfig]
) -> None:
    out, mark = tmp_path / "broken", f"SOFED_TEST_{os.getpid()}"
    overrides = [*SMOKE, "rounds=40", "stream.segments=4", "workers=2", f"out={out}"]
    command = [str(BIN / "sofed"), "run", *overrides]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SOFED_MARK": mark},
        # a test suite started in the background inherits an ignored SIGINT; a user's shell does not
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )

    def committed() -> int:
        return max((row["round"] for row in read_rows(out / "metrics.jsonl") if row["name"] == "seconds"), default=-1)

    wait_until(lambda: committed() >= 2, 120, process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "resume=" in error
    assert marked("SOFED_MARK", mark) == []
    stopped_at = committed()
    assert 2 <= stopped_at < 40

    total = stopped_at + 2
    refused = sofed("run", f"resume={out}", "seed=5")
    assert (refused.returncode, "seed (was 0, is 5)" in refused.stderr) == (2, True)
    done = sofed("run", f"resume={out}", f"rounds={total}")
    assert done.returncode == 0, done.stderr
    whole = smoke(f"rounds={total}", "stream.segments=4", out="whole")
    assert (out / "encoder.safetensors").read_bytes() == expected_encoder(whole)


def foreign_state(out: Path) -> None:
    """State of no run makes every ClientApp raise."""
    for device in ("0", "1"):
        Store(out / "devices" / device).save(Generation(0, {"x": torch.zeros(1)}, {}))


@pytest.mark.flower
def test_a_failure_on_the_devices_reaches_the_user_in_its_own_words(tmp_path: Path) -> None:
    """One of the ServerApp: `test_launcher.py`."""
    foreign_state(tmp_path)
    done = sofed("run", *SMOKE, "federation.patience=1", f"out={tmp_path}")
    assert done.returncode == 1
    assert "KeyError" in done.stderr


@pytest.mark.flower
def test_the_demo_of_make_run_teaches_the_encoder_what_an_untrained_one_does_not_know(tmp_path: Path) -> None:
    """Nine of the demo's eighteen rounds are enough for the gain that the README claims at least."""
    done = sofed("run", "rounds=9", f"out={tmp_path / 'demo'}", timeout=600)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    untrained, trained = summary["untrained"]["linear"]["1.0"], summary["linear"]["1.0"]
    assert untrained < 60
    assert trained - untrained >= 15
    assert summary["discard_ratio"] > 0.5


@pytest.mark.flower
def test_plain_flwr_run_works_with_flowers_defaults(tmp_path: Path) -> None:
    """Two simulated SuperNodes, Flower's default, play three devices."""
    overrides = " ".join([*SMOKE, "clients=3", f"out={tmp_path / 'run'}"])
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_ADDRESS": "local",
    }
    command: Sequence[str] = ["flwr", "run", str(ROOT), "--stream", "--run-config", f"overrides='{overrides}'"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    finally:
        for process in marked("FLWR_HOME", environment["FLWR_HOME"]):
            process.kill()
    assert (tmp_path / "run" / "summary.json").exists(), done.stdout + done.stderr
    assert "knn" in done.stdout


@pytest.mark.parametrize("override", ["policy.lazy_interval=0", "policy=lru", "clients=300"])
def test_a_wrong_configuration_is_one_line_and_exit_code_2(tmp_path: Path, override: str) -> None:
    done = sofed("run", *SMOKE, f"out={tmp_path / 'run'}", override)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert override.split("=")[0] in done.stderr
    assert not (tmp_path / "run").exists()
