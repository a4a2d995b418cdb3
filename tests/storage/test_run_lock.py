"""A run directory has one server at a time, and a killed one leaves no trace that would keep the next one out."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sofed_flwr.core.errors import ConfigError
from sofed_flwr.storage import file_lock
from sofed_flwr.storage.run_lock import RunLock

SERVER = "import sys, time; from pathlib import Path; from sofed_flwr.storage.run_lock import RunLock\n"
SERVER += "lock = RunLock(Path(sys.argv[1])); lock.take(); print('taken', flush=True); time.sleep(20)"


def test_a_server_keeps_others_out_until_it_is_killed(tmp_path: Path) -> None:
    lock = RunLock(tmp_path / "server.lock")
    submitted = time.time() - 1
    assert not lock.was_lost_after(submitted), "nobody has begun"
    with subprocess.Popen([sys.executable, "-c", SERVER, str(lock.path)], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"taken\n"
        with pytest.raises(ConfigError, match=f"process {server.pid} works on this run"):
            lock.take(wait=0.1)
        assert not lock.was_lost_after(submitted), "it lives"
        server.kill()
    assert lock.was_lost_after(submitted)
    assert not lock.was_lost_after(time.time() + 60), "that was the server of an earlier run"
    lock.take()
    assert lock.path.read_text().strip() != str(server.pid)


def test_a_server_that_is_about_to_end_is_waited_for(tmp_path: Path) -> None:
    lock = RunLock(tmp_path / "server.lock")
    program = SERVER.replace("20", "1.5")
    with subprocess.Popen([sys.executable, "-c", program, str(lock.path)], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        lock.take(wait=30)
        assert server.wait(10) == 0


def test_a_process_of_the_same_number_in_another_container_is_kept_out(tmp_path: Path) -> None:
    """They share the directory, not the process numbers."""
    lock = RunLock(tmp_path / "server.lock")
    program = SERVER.replace("import sys, time;", f"import os, sys, time; os.getpid = lambda: {os.getpid()};")
    with subprocess.Popen([sys.executable, "-c", program, str(lock.path)], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        with pytest.raises(ConfigError, match="works on this run"):
            lock.take(wait=0.1)
        server.kill()
    lock.take()
    RunLock(lock.path).take(wait=0.1)  # the same process may


def test_a_clock_that_was_set_back_makes_no_run_lost(tmp_path: Path) -> None:
    """The lock of an earlier server, taken while the clock was an hour ahead."""
    lock = RunLock(tmp_path / "server.lock")
    lock.path.write_text("4711 earlier")
    os.utime(lock.path, (time.time() + 3600, time.time() + 3600))
    assert not lock.was_lost_after(time.time() - 1)


def test_a_file_system_without_locks_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(file_lock.fcntl, "flock", refused)
    began = time.monotonic()
    with pytest.raises(OSError, match="No locks available"):
        RunLock(tmp_path / "server.lock").take()
    assert time.monotonic() - began < 5
