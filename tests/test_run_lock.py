"""A run directory has one server at a time, and a killed one leaves no trace that would keep the next one out."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from sofed_flwr.component import ConfigError
from sofed_flwr.run_lock import RunLock

SERVER = "import sys, time; from pathlib import Path; from sofed_flwr.run_lock import RunLock\n"
SERVER += "lock = RunLock(Path(sys.argv[1])); lock.take(); print('taken', flush=True); time.sleep(20)"


def test_a_server_keeps_others_out_until_it_is_killed(tmp_path: Path) -> None:
    lock = RunLock(tmp_path / "server.lock")
    submitted = time.time() - 1
    assert not lock.was_lost_after(submitted), "nobody has begun"
    with subprocess.Popen([sys.executable, "-c", SERVER, str(lock.path)], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"taken\n"
        with pytest.raises(ConfigError, match=f"process {server.pid} is at work on this run"):
            lock.take(patience=0.1)
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
        lock.take(patience=30)
        assert server.wait(10) == 0
