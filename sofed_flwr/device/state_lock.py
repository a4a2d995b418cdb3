"""One process at a time trains with a device's state: of two, each would commit rounds unknown to the other.

The directory itself is locked by the operating system. So the lock needs no file, works on a read-only disk, and ends
with its process. A note beside the state names the holder.
"""

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from sofed_flwr.core.errors import DeviceError
from sofed_flwr.storage.file_lock import take_lock

WAIT_SECONDS = 10.0
"""The process of an abandoned round may be about to end; a longer wait could miss this round's deadline."""
NOTE = "in_use.json"

log = logging.getLogger(__name__)


@contextmanager
def locked_state(directory: Path, purpose: Mapping[str, Any], wait: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold the lock in the block; other processes get a `DeviceError` that names `purpose` (run and round).

    If the directory cannot be created, nothing can be committed there and nothing is locked.
    """
    with ExitStack() as at_the_end:
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            log.debug("the state has no directory (%s)", error)
        else:
            at_the_end.callback(os.close, handle)
            _acquire(directory, handle, wait)
            at_the_end.callback(_note, directory, None)
            _note(directory, {"pid": os.getpid(), **purpose})
        yield


def _acquire(directory: Path, handle: int, wait: float) -> None:
    try:
        if take_lock(handle, wait):
            return
    except OSError as error:  # a network file system may not lock directories
        log.warning("this device's state cannot be locked (%s)", error.strerror)
        return
    text = f"this device's state is in use: {_holder(directory)}"
    log.warning(text)
    raise DeviceError(text)


def _note(directory: Path, content: Mapping[str, Any] | None) -> None:
    """Not synced, and skipped on a read-only disk: it matters only while its process lives."""
    file = directory / NOTE
    with suppress(OSError):
        file.write_text(json.dumps(content)) if content else file.unlink(missing_ok=True)


def _holder(directory: Path) -> str:
    """The note is untrusted: only numbers and a name in the form of a run's are shown."""
    try:
        note = json.loads((directory / NOTE).read_text())
        pid, run, number = int(note["pid"]), str(note["run"]), int(note["round"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "by a process that left no note"
    name = run if re.fullmatch(r"[\w.-]{1,64}", run) else "of another name"
    return f"process {pid} trains round {number} of run {name}"
