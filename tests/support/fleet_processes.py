"""Processes of a federation on loopback: started from shipped scripts, found again by their FLWR_HOME, ended by pid.

Commands are the shipped scripts themselves with the variables of `sofed.env` in their environment, so a test runs what
a device runs.
"""

import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from sofed_flwr.fleet.provision.settings import read_settings
from sofed_flwr.fleet.provision.site import Site

LONGEST_S = 240.0
"""Bound of every wait; CI's machine may be busy."""


class Command(NamedTuple):
    """A program to start: `Popen(command.arguments, env=command.environment)`."""

    arguments: list[str]
    environment: dict[str, str]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def wait_for(event: Callable[[], Any], what: str, seconds: float = LONGEST_S) -> Any:
    end = time.monotonic() + seconds
    while not (value := event()):
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.05)
    return value


def processes(home: Path) -> list[psutil.Process]:
    """All living processes with this FLWR_HOME."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("FLWR_HOME") == str(home):
                found.append(process)
    return found


def end(home: Path) -> None:
    """kill -9 of everything that runs in a FLWR_HOME, as a power cut would."""
    wait_for(lambda: not [_kill(process) for process in processes(home)], f"the end of {home.name}", 30)


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.Error):
        process.kill()


def ending(run: "subprocess.Popen[str]", seconds: float = LONGEST_S) -> tuple[int, str]:
    """How a command ended: exit code and what it said."""
    _, error = run.communicate(timeout=seconds)
    return run.returncode, error


def newest(folder: Path) -> str:
    """Digest of the newest generation's main file."""
    files = sorted(folder.glob("*.safetensors"))
    return hashlib.sha256(files[-1].read_bytes()).hexdigest() if files else ""


def listens(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def answer_to(user: int, port: int, *, tls: bool = False) -> str:
    """What a process of a user gets from an HTTP server on loopback; only root can ask."""
    code = f"""
import os, socket, ssl
context = ssl._create_unverified_context()
os.setuid({user})  # after the imports, as this user may have no right to read Python's files
caller = socket.socket()
caller.connect(("127.0.0.1", {port}))
caller = context.wrap_socket(caller) if {tls} else caller
caller.sendall(b"GET /health HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
print(caller.recv(100).decode())
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def superlink_command(site: Site) -> Command:
    """The server, as it ships."""
    return Command([str(site.server / "start.sh")], {**os.environ, **site.settings})


def supernode_command(
    site: Site, number: int, *, source: Path | None = None, state: Path | None = None, port: int | None = None
) -> Command:
    """A device, as it ships, on this machine; arguments replace lines of `sofed.env`."""
    given = {"SOFED_SPOOL": source, "SOFED_STATE": state, "SOFED_PORT": port}
    chosen = {name: str(value) for name, value in given.items() if value is not None}
    shipped = read_settings(site.device(number) / "sofed.env") | {"SOFED_BIN": site.settings["SOFED_BIN"]}
    return Command([str(site.device(number) / "start.sh")], {**os.environ, **shipped, **chosen})


class Program:
    """A shipped script as a process in a session of its own, with its output in a file."""

    def __init__(self, command: Command, log: Path, **environment: str) -> None:
        self.command, self.log, self.environment = command, log, environment
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command.arguments,
                env=self.command.environment | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
