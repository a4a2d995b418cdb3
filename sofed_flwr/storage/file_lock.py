"""A lock of the operating system, so it ends with its process: nothing is left behind that keeps the next one out."""

import fcntl
import time
from typing import IO


def take_lock(file: int | IO[bytes], wait: float = 0.0) -> bool:
    """Lock an open file or directory for as long as it is open; False if another process holds it for `wait` seconds.

    A file system without locks is an `OSError`.
    """
    until = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(min(0.1, wait))
