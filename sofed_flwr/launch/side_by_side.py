"""Simulations as processes of their own, so that several run at a time.

A simulation of a few small devices leaves cores idle: devices wait for the slowest of them, then all wait for the
evaluation. Two simulations with one worker each do not wait for each other.
"""

import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Self

from sofed_flwr.config.override_text import merged
from sofed_flwr.core.errors import InterruptedRunError, RunFailed
from sofed_flwr.launch.flwr_cli import deferred_signals


class SideBySide:
    """`simulate` may be called by several threads; whatever runs at the end of the block is stopped."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[str]] = []
        self._stopped = False
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with deferred_signals(), self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()  # whoever starts a command in the background has it ignore Ctrl-C
            for process in self._running:
                process.wait()

    def simulate(self, overrides: Sequence[str]) -> None:
        """`sofed run` with one worker; raises what that command said."""
        command = [sys.executable, "-m", "sofed_flwr", "run", *merged(overrides, ["workers=1"])]
        with self._lock:
            if self._stopped:
                raise InterruptedRunError("interrupted")
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            self._running.append(process)
        _, said = process.communicate()
        if process.returncode == InterruptedRunError.exit_code:
            raise InterruptedRunError("interrupted")
        if process.returncode:
            lines = said.strip().splitlines() or [f"the run's process ended with {process.returncode}"]
            raise RunFailed(lines[-1].removeprefix("sofed: "))
