"""Simulations as processes of their own end with the command that started them."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sofed_flwr.core.errors import InterruptedRunError, RunFailed
from sofed_flwr.launch.side_by_side import SideBySide


def stub(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def test_the_end_of_the_block_stops_a_run_that_ignores_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As every process does that a shell started in the background."""
    up = tmp_path / "up"
    stub(tmp_path / "run", f"trap '' INT; trap 'exit 130' TERM; : > {up}; while :; do sleep 0.05; done", monkeypatch)
    pool = ThreadPoolExecutor(1)
    with SideBySide() as processes:
        run = pool.submit(processes.simulate, ["rounds=1"])
        while not up.exists():
            time.sleep(0.01)
    with pytest.raises(InterruptedRunError):
        run.result(timeout=60)
    with pytest.raises(InterruptedRunError):
        processes.simulate(["rounds=1"])


def test_a_run_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(tmp_path / "run", "echo 'sofed: no more disk' >&2; exit 1", monkeypatch)
    with SideBySide() as processes, pytest.raises(RunFailed, match=r"^no more disk$"):
        processes.simulate(["rounds=1"])
