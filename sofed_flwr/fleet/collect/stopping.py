"""Waiting that a signal ends without an exception, so that no child process is left half started."""

import os
import select
import signal
from collections.abc import Sequence
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopping:
    """While entered, SIGINT, SIGTERM and SIGHUP only set `now` and end the waiting."""

    def __init__(self) -> None:
        self.now = False
        self._reader, self._writer = os.pipe()
        self._before = {number: signal.getsignal(number) for number in SIGNALS}

    def __enter__(self) -> "Stopping":
        for number, handler in self._before.items():
            if handler != signal.SIG_IGN:  # nohup stays nohup
                signal.signal(number, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def wait(self, seconds: float, files: Sequence[int] = ()) -> bool:
        """Until one of the files can be read (True), a signal comes, or the time is over."""
        ready = select.select([self._reader, *files], [], [], max(0.0, seconds))[0]
        return any(file in ready for file in files)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.now = True
        os.write(self._writer, b"!")
