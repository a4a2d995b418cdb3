"""One server per run directory: two would overwrite each other's rounds.

The lock is the operating system's, so it ends with its process. It also shows whether a run's server is still alive.
"""

import logging
import os
import time
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from sofed_flwr.core.errors import ConfigError
from sofed_flwr.storage.file_lock import take_lock

WAIT_SECONDS = 60.0
"""A server that is stopping may take a while to end."""

THIS_PROCESS = f"{os.getpid()} {uuid.uuid4().hex}"
"""A process in another container may have the same number."""

log = logging.getLogger(__name__)


class RunLock:
    """Held from `take` until it or its process is gone; the file says by which process, and since when."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    def take(self, wait: float = WAIT_SECONDS) -> None:
        """Wait for an earlier server to end, then lock; the same process may take it again."""
        self.path.open("ab").close()  # now it exists, and its time is still that of the last holder
        with ExitStack() as if_refused:
            file = if_refused.enter_context(self.path.open("rb"))  # for reading, as the disk may be read-only
            if not take_lock(file):
                text = self.path.read_text(errors="replace")
                if text == THIS_PROCESS:
                    return
                holder = text.partition(" ")[0]
                log.warning("waiting for process %s to end, which works on this run", holder)
                if not take_lock(file, wait):
                    raise ConfigError(f"out={self.path.parent}: process {holder} works on this run; stop it first")
            if_refused.pop_all()
        self.path.write_text(THIS_PROCESS)
        self._file = file

    def was_lost_after(self, moment: float) -> bool:
        """Whether a server took it after this time, as `time.time()` counts, and is gone.

        A time in the future was written before the clock was set back, and is ignored.
        """
        with suppress(OSError), self.path.open("rb") as file:
            taken = os.fstat(file.fileno())
            return taken.st_size > 0 and moment <= taken.st_mtime <= time.time() and take_lock(file)
        return False
