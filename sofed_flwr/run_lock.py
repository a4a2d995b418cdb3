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
        self._file: IO[bytes] | None = None

    def take(self, patience: float = PATIENCE_SECONDS) -> None:
        """Wait for an earlier server to end, then be the one; a process may take it again."""
        self.path.open("ab").close()  # now it exists, and its time is still that of the last holder
        until = time.monotonic() + patience
        while (file := _locked(self.path)) is None:
            holder = self.path.read_text()
            if holder == str(os.getpid()):
                return
            if time.monotonic() > until:
                raise ConfigError(f"out={self.path.parent}: process {holder} is at work on this run; stop it first")
            log.warning("waiting for process %s to end, which works on this run", holder)
            time.sleep(min(1.0, patience))
        self.path.write_text(str(os.getpid()))
        self._file = file

    def was_lost_after(self, moment: float) -> bool:
        """Whether a server took it after this time, as `time.time()` counts, and is gone."""
        if not self.path.exists() or not self.path.read_bytes() or self.path.stat().st_mtime < moment:
            return False
        file = _locked(self.path)
        if file is None:
            return False
        file.close()
        return True


def _locked(path: Path) -> IO[bytes] | None:
    """The file, locked for as long as it is open; open for reading, so that a disk may turn read-only under it."""
    file = path.open("rb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
