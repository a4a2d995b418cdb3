"""The camera's program in a process group of its own, so that it can be ended with all its children."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

GRACE_SECONDS = 1.0
PIECE = 2**16


def camera_command(target: str, every: float) -> list[str]:
    """One JPEG per `every` seconds of a camera, by its index, or of a video file.

    By its path: the running code may be Flower's copy, not the installed package.
    """
    return [sys.executable, "-P", str(Path(__file__).with_name("camera_program.py")), target, str(every)]


def has_opencv() -> bool:
    """Whether the camera's program can run."""
    return find_spec("cv2") is not None


class Child:
    """A running command whose standard output is read; it shares our standard error."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout.fileno()

    def read(self) -> bytes:
        """The bytes that have arrived; empty after its end."""
        return os.read(self.output, PIECE)

    def end(self) -> None:
        """SIGTERM, then SIGKILL to the whole group; a process stuck in a driver may survive both."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def gone(self) -> bool:
        """Whether it has ended; only then the next one may be started."""
        return self._process.poll() is not None

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
