"""How marked processes end; with real Flower processes: `test_simulation.py`."""

import os
import subprocess
import sys
from pathlib import Path

from sofed_flwr.launch.watchdog import MARK, end_all
from tests.support.fleet_processes import wait_for

# Like Flower's: it survives SIGTERM for a while, and a round that loses its worker is a failed one.
SERVER = """
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: None)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
notes = pathlib.Path(sys.argv[2])
(notes / "began").touch()
worker.wait()
(notes / "a failed round was committed").touch()
"""


def test_a_server_never_sees_its_workers_die(tmp_path: Path) -> None:
    """It would commit a round without them, and a resumed run would not repeat it."""
    mark = str(tmp_path)
    command = [sys.executable, "-c", SERVER, "flwr-simulation", str(tmp_path)]
    server = subprocess.Popen(command, env={**os.environ, MARK: mark})
    wait_for(lambda: (tmp_path / "began").exists(), "the server")
    end_all(mark, grace=2.0)
    server.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["began"]
