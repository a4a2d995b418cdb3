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
from typer.testing import CliRunner

from sofed_flwr.build import build_method
from sofed_flwr.cli.main import app
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.server.training_images import trained_on
from sofed_flwr.storage.metrics_log import read_rows
from tests.support.federation import ROOT, SMOKE, federate

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
    server.finish(config.encoder, config.facts, trained_on(config, server.suite, server.split))
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
def test_ctrl_c_leaves_no_process_and_the_run_resumes_to_the_encoder_it_would_have_given(
    tmp_path: Path, smoke: Callable[..., RunConfig]
) -> None:
    """Ctrl-C twice, the second time while everything is being ended; then one worker instead of two."""
    out, mark = tmp_path / "broken", f"SOFED_TEST_{os.getpid()}"
    overrides = [*SMOKE, "rounds=40", "stream.segments=4", "workers=2", f"out={out}"]
    command = [str(BIN / "sofed"), "run", *overrides]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SOFED_MARK": mark},
        start_new_session=True,
        # a test suite started in the background inherits an ignored SIGINT; a user's shell does not
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )

    def committed() -> int:
        return max((row["round"] for row in read_rows(out / "metrics.jsonl") if row["name"] == "seconds"), default=-1)

    wait_until(lambda: committed() >= 2, 120, process)
    (server,) = [other for other in marked("SOFED_MARK", mark) if "flwr-simulation" in " ".join(other.cmdline())]
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
    server.wait(30)  # it ends first
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "resume=" in error
    assert marked("SOFED_MARK", mark) == []
    stopped_at = committed()
    assert 2 <= stopped_at < 40

    total = stopped_at + 2
    done = sofed("run", f"resume={out}", f"rounds={total}", "workers=1")
    assert done.returncode == 0, done.stderr
    assert "untrained" in done.stdout
    encoder = out / "encoder.safetensors"
    assert str(encoder) in done.stdout
    whole = smoke(f"rounds={total}", "stream.segments=4", out="whole")
    assert encoder.read_bytes() == expected_encoder(whole)
    check_summary(encoder, whole)


def check_summary(encoder: Path, config: RunConfig) -> None:
    """What a run reports is what can be counted and measured afterwards."""
    summary = json.loads((encoder.parent / "summary.json").read_text())
    shared_bytes = 4 * sum(tensor.numel() for tensor in build_method(config).shared_state().values())
    assert shared_bytes <= summary["bytes_up_per_client_round"] <= 1.5 * shared_bytes
    evaluated = CliRunner().invoke(app, ["evaluate", str(encoder), *SMOKE])
    assert evaluated.exit_code == 0, evaluated.stderr
    assert f"{summary['knn']:.2f}" in evaluated.stdout


@pytest.mark.soak
def test_a_run_whose_rounds_all_failed_is_a_failed_run_that_says_why_in_the_devices_words(tmp_path: Path) -> None:
    """Every device diverges, and keeps nothing of it. A failure of the ServerApp: `test_simulation.py`."""
    done = sofed("run", *SMOKE, "optimizer.lr=1e20", f"out={tmp_path}")
    assert done.returncode == 1
    assert "none of 2 rounds counted" in done.stderr
    assert "diverged in round 2: the loss is nan; this device keeps its state from before it" in done.stderr
    assert "trained" not in done.stdout
    assert not (tmp_path / "summary.json").exists()
    assert not list(tmp_path.glob("devices/*/*"))


@pytest.mark.flower
def test_plain_flwr_run_works_with_flowers_defaults(tmp_path: Path, smoke: Callable[..., RunConfig]) -> None:
    """Two simulated SuperNodes, Flower's default, play three devices, and no Flower at all gives the same encoder."""
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
    encoder = tmp_path / "run" / "encoder.safetensors"
    assert encoder.read_bytes() == expected_encoder(smoke("clients=3", out="plain"))


def test_a_wrong_configuration_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = sofed("run", *SMOKE, f"out={tmp_path / 'run'}", "clients=300")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("sofed: clients=300: ")
    assert not (tmp_path / "run").exists()
