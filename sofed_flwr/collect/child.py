"""The program that takes the pictures, in a process group of its own: what hangs can be ended with all it started."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

GRACE_SECONDS = 1.0
PIECE = 2**16


class Child:
    """A running command whose standard output is read; its complaints go where ours go."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout.fileno()

    def read(self) -> bytes:
        """What has arrived; nothing once it has closed its output."""
        return os.read(self.output, PIECE)

    def end(self) -> None:
        """Ask, then insist, the whole group; a process stuck in a driver may outlast even that."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def gone(self) -> bool:
        """Only then may the next one be started: they must not pile up."""
        return self._process.poll() is not None

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
