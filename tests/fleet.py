"""A real federation on loopback, started by the scripts that `sofed provision` ships.

SuperNodes live under a supervisor that does what their systemd unit says: always start again. Everything is found again
by the FLWR_HOME its processes inherit, and stopped by its pid. Each device keeps a diary of the tasks it began, so that
a mishap can meet it in the middle of one.
"""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from sofed_flwr.provision.build import provision
from sofed_flwr.provision.registration import register
from sofed_flwr.provision.site import Command, Site
from sofed_flwr.provision.units import RESTART_SECONDS
from sofed_flwr.runlog import Row, read_rows

PATIENCE = 240.0
"""Bound of every wait; CI's machine may be busy."""
DIARY = '''
import sys
if "flwr-clientapp" in " ".join(sys.orig_argv):
    import os, time
    import sofed_flwr.flower as bridge
    unpack = bridge.unpack_task

    def unpack_task(message, context):
        """The task has arrived: a line in the diary, and time for something to happen to this process."""
        task, shared = unpack(message, context)
        with open(os.environ["FLEET_DIARY"], "a") as diary:
            diary.write(f"{message.metadata.created_at} {message.metadata.run_id} {task.round} {os.getpid()}\\n")
        time.sleep(3)
        return task, shared

    bridge.unpack_task = unpack_task
'''
"""A `sitecustomize` for all devices."""


class Work(NamedTuple):
    """A task that a device began: when it was sent, in which of Flower's runs, for which round, in which process."""

    sent: float
    run: int
    round: int
    pid: int


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def wait_for(event: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
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


def ending(run: "subprocess.Popen[str]", seconds: float = PATIENCE) -> tuple[int, str]:
    """How a command ended: exit code and what it said."""
    _, error = run.communicate(timeout=seconds)
    return run.returncode, error


def newest(folder: Path) -> str:
    """Digest of the newest generation's main file."""
    files = sorted(folder.glob("*.safetensors"))
    return hashlib.sha256(files[-1].read_bytes()).hexdigest() if files else ""


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


class Node:
    """One device: a SuperNode that is started again whenever it ends, with its spool and its state."""

    def __init__(self, site: Site, number: int, folder: Path, habits: str) -> None:
        """`habits` is Python that every process of the device begins with."""
        self.number = number
        self.spool, self.state = folder / f"spool-{number}", folder / f"state-{number}"
        self.files = self.state / str(number)
        self.home = self.state / "flower"
        self.diary = folder / f"diary-{number}"
        self.spool.mkdir(parents=True)
        command = site.supernode_command(number, source=self.spool, state=self.state, port=free_port())
        code = _sitecustomize(folder / f"habits-{number}", habits)
        environment = {
            "SOFED_THREADS": "1",  # several devices on one machine must not each take all of its cores
            "FLEET_DIARY": str(self.diary),
            "PYTHONPATH": os.pathsep.join([str(code), os.environ.get("PYTHONPATH", "")]),
        }
        self.program = Program(command, folder / f"device-{number}.log", **environment)
        self._stopping = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)

    def start(self) -> None:
        self.program.start()
        self._supervisor.start()

    def work(self, round_number: int) -> Work | None:
        """What it did last for this round, finished or not."""
        lines = self.diary.read_text().splitlines() if self.diary.exists() else []
        words = [line.split() for line in lines]
        works = [Work(float(sent), int(run), int(number), int(pid)) for sent, run, number, pid in words]
        return next((work for work in reversed(works) if work.round == round_number), None)

    def connections(self) -> int:
        """How often the server let it in."""
        return self.program.log.read_bytes().count(b"SuperNode ID: ")

    def kill_client(self, round_number: int) -> None:
        """kill -9 of the process that trains this round."""
        work = self.work(round_number)
        assert work is not None
        os.kill(work.pid, signal.SIGKILL)

    def pull_the_plug(self) -> None:
        end(self.home)

    def freeze(self) -> None:
        for process in processes(self.home):
            process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        for process in processes(self.home):
            process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._stopping.set()
        self.thaw()
        end(self.home)

    def _supervise(self) -> None:
        while not self._stopping.is_set():
            process = self.program.process
            assert process is not None
            if process.poll() is not None and not self._stopping.wait(RESTART_SECONDS):
                self.program.start()
            self._stopping.wait(0.2)


class Fleet:
    """A site with its server, its devices and its runs."""

    def __init__(self, folder: Path, devices: int, hostile: str = "") -> None:
        """The last device does what `hostile` says."""
        quiet: Callable[[str], None] = lambda _: None  # noqa: E731
        ports = {"port": free_port(), "control_port": free_port()}
        self.folder = folder
        self.site = provision(folder / "site", ["localhost"], devices, **ports, bind="127.0.0.1", say=quiet)
        self.home = self.site.server / "flower"
        self.out = folder / "run"
        self.superlink = Program(self.site.superlink_command(), folder / "superlink.log")
        habits = [DIARY] * (devices - 1) + [DIARY + hostile]
        self.nodes = [Node(self.site, k, folder, own) for k, own in enumerate(habits)]

    def start_server(self) -> None:
        self.superlink.start()
        port = int(self.site.settings["SOFED_CONTROL_PORT"])
        wait_for(lambda: _listens(port), "the SuperLink")

    def kill_server(self) -> None:
        """kill -9 of the SuperLink."""
        assert self.superlink.process is not None
        self.superlink.process.kill()
        self.superlink.process.wait()

    def register(self) -> None:
        register(self.site, lambda _: None)

    def run(self, *overrides: str, out: str = "run") -> "subprocess.Popen[str]":
        """`sofed run --fleet`, as a user types it."""
        command = [str(Path(sys.executable).parent / "sofed"), "run", "--fleet", str(self.site.directory)]
        return subprocess.Popen(
            [*command, f"out={self.folder / out}", *overrides],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def kill_server_app(self) -> None:
        """kill -9 of the ServerApp, which works beside the SuperLink."""
        self._server_app().kill()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The ServerApp holds its breath: what is under way goes on, no further round begins."""
        app = self._server_app()
        app.suspend()
        try:
            yield
        finally:
            app.resume()

    def _server_app(self) -> psutil.Process:
        (app,) = [process for process in processes(self.home) if "flwr-serverapp" in " ".join(process.cmdline())]
        return app

    def rows(self, name: str, round_number: int | None = None) -> list[Row]:
        rows = [row for row in read_rows(self.out / "metrics.jsonl") if row["name"] == name]
        return [row for row in rows if round_number in (None, row["round"])]

    def replied(self, round_number: int) -> list[int]:
        """Devices whose updates entered a round's mean."""
        return [row["device"] for row in self.rows("steps", round_number) if "device" in row]

    def seconds(self, round_number: int) -> float:
        """How long a committed round took, 0 for others."""
        return next((row["value"] for row in self.rows("seconds", round_number) if "device" not in row), 0.0)

    def wait_until_committed(self, round_number: int) -> None:
        wait_for(lambda: self.seconds(round_number), f"round {round_number}")

    def strike(self, round_number: int, mishaps: dict[int, Callable[[], None]]) -> dict[int, float]:
        """Each mishap meets its device as soon as that has begun this round; when it did, by device."""
        struck: dict[int, float] = {}
        while left := mishaps.keys() - struck.keys():
            for device in self._begun(round_number, left):
                mishaps[device]()
                struck[device] = time.monotonic()
        return struck

    def _begun(self, round_number: int, devices: set[int]) -> list[int]:
        """Those of the devices that are at work in this round, as soon as there are any."""
        event = lambda: [device for device in devices if self.nodes[device].work(round_number)]  # noqa: E731
        found: list[int] = wait_for(event, f"one of the devices {devices} in round {round_number}")
        return found

    def report(self, rounds: int) -> str:
        lines = [f"round {k}: {self.seconds(k):.0f} s, replies of {self.replied(k)}" for k in range(1, rounds + 1)]
        return "\n".join(lines)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
        end(self.home)


def _sitecustomize(folder: Path, code: str) -> Path:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return folder


def _listens(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0
