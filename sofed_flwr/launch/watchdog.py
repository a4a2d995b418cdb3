"""Nothing that a command started outlives it, not even after kill -9 of the command.

Flower's SuperExec and Ray lead sessions of their own, and a parent-death signal reaches direct children only. So every
process has a mark in its environment, the path of the command's scratch directory, which its children inherit. A small
process waits at a pipe whose other end only the command holds: end of file means that the command is gone, however it
ended, and that none of its children is still between fork and exec, where it has no mark yet. Then it ends all that
have the mark and removes the directory.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryDirectory
from typing import IO

import psutil

MARK = "SOFED_LAUNCH"
SERVER = "flwr-simulation"  # Flower's program in which the ServerApp runs
GRACE_SECONDS = 3.0  # for what may still be writing: the apps of an interrupted run
STUCK_SECONDS = 10.0  # a process can be stuck in the kernel, and nothing ends it then


@contextmanager
def scratch_directory(log: IO[bytes]) -> Iterator[str]:
    """A directory that is removed with this process, together with all processes marked with its path."""
    short = "/tmp" if os.access("/tmp", os.W_OK) else None  # the path of a Ray socket may have 107 bytes
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    with TemporaryDirectory(prefix="sofed-", dir=short, ignore_cleanup_errors=True) as scratch:
        program = [sys.executable, "-P", "-m", "sofed_flwr.launch.watchdog", scratch]
        process = Popen(program, stdin=PIPE, stdout=DEVNULL, stderr=log, env=environment, start_new_session=True)
        assert process.stdin is not None
        try:
            yield scratch
        finally:
            process.stdin.close()
            process.wait()


def end_all(mark: str, grace: float = GRACE_SECONDS) -> None:
    """SIGTERM to every marked process, SIGKILL after `grace` seconds.

    The ServerApp is killed first: it would take its ending workers for failed devices and commit a round without them,
    which a resumed run does not repeat. Files are written atomically, so none is left half written.
    """
    servers = [process for process in _family(mark) if _runs(process, SERVER)]
    for server in servers:
        with suppress(psutil.Error):
            server.kill()
    psutil.wait_procs(servers, timeout=1.0)
    kill = time.monotonic() + grace
    known: set[psutil.Process] = set()
    # searches again each time: Ray starts workers while it ends
    while (family := set(filter(alive, known | _family(mark)))) and time.monotonic() < kill + STUCK_SECONDS:
        polite = time.monotonic() < kill
        for process in family - known if polite else family:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGTERM if polite else signal.SIGKILL)
        known |= family
        time.sleep(0.05)


def alive(process: psutil.Process) -> bool:
    """Whether it runs, and is not a zombie."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _runs(process: psutil.Process, program: str) -> bool:
    with suppress(psutil.Error):
        return any(Path(word).name == program for word in process.cmdline())
    return False


def _family(mark: str) -> set[psutil.Process]:
    """All our processes with the mark, and their descendants: the environment of one of them may be unreadable."""
    family: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().real == os.getuid() and process.environ().get(MARK) == mark:
                family |= {process, *process.children(recursive=True)}
    return family


def main(scratch: str) -> None:
    """Wait for the end of the command, then clean up; nothing is left to do if it did so itself."""
    sys.stdin.buffer.read()
    end_all(scratch)
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
