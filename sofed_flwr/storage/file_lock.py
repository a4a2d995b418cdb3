"""A lock of the operating system, so it ends with its process: nothing is left behind that keeps the next one out."""

import fcntl
from typing import IO


def take_lock(file: int | IO[bytes], *, wait: bool = False) -> bool:
    """Lock an open file or directory for as long as it is open; False if another process holds it.

    A file system without locks is an `OSError`.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
