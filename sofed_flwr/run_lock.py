"""One server per run directory: two that commit rounds there would undo each other's.

The lock is the operating system's, so it ends with its process, however that ended; and whoever wants to know whether a
run's server still lives can ask it.
"""

import fcntl
import logging
import os
import time
from pathlib import Path
from typing import IO

from sofed_flwr.component import ConfigError

PATIENCE_SECONDS = 60.0
"""A server that was told to stop may take a while to end."""

log = logging.getLogger(__name__)


class RunLock:
    """Held from `take` until it or its process is gone; the file says by which process, and since when."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def take(self, patience: float = PATIENCE_SECONDS) -> None:
        """Wait for an earlier server to end, then be the one; a process may take it again."""
        file = self.path.open("a+")
        until = time.monotonic() + patience
        while not _lock(file):
            file.seek(0)
            holder = file.read().strip()
            if time.monotonic() > until:
                file.close()
                raise ConfigError(f"out={self.path.parent}: process {holder} is at work on this run; stop it first")
            log.warning("waiting for process %s to end, which works on this run", holder)
            time.sleep(min(1.0, patience))
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def was_lost_after(self, moment: float) -> bool:
        """Whether a server took it after this time, as `time.time()` counts, and is gone. Not for the holder to ask."""
        if not self.path.exists() or self.path.stat().st_mtime < moment:
            return False
        with self.path.open("a") as file:
            return _lock(file)


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
