"""One private Flower simulation, owned from its first process to its last.

A bare `flwr run` reuses a SuperLink left by an earlier run, even of another environment, exits 0 when the run failed and
leaves Ray behind when interrupted. So every run gets its own SuperLink on a free loopback port, its own FLWR_HOME and
its own Ray. All their processes inherit the path of that home: by this mark we find them again, orphans included.

Flower is used through its commands, and each costs a second of Python start-up. Hence a run is watched through its
process, which costs a read of /proc, and Flower is asked once, at the end, how it went.
"""

import http.client
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn, TypeVar

import psutil  # type: ignore[import-untyped,unused-ignore]

START_SECONDS = 120.0  # bound of each command: 1-2 s on a PC, perhaps ten times that on a small board
GRACE_SECONDS = 3.0  # for what may still be writing: the log stream after a run, the apps of an interrupted one
UNSAID = {"", "N/A", "Task failed with unknown error.", "An error was encountered. Ending simulation."}
T = TypeVar("T")


class SimulationFailed(RuntimeError):
    """The run ended, but not well; the message is the app's own reason."""


@dataclass(frozen=True)
class SimulationJob:
    """What to run, on how many simulated devices, and where the output goes."""

    app: Path  # directory with pyproject.toml
    overrides: str  # value of the run-config key `overrides`
    nodes: int  # simulated devices
    workers: int  # client processes at a time, one cpu each
    log: Path  # receives, appended, everything Flower, Ray and the apps print


def simulate(job: SimulationJob, tick: Callable[[], None], interval: float = 0.25) -> None:
    """Run to the end, calling `tick` every `interval` seconds; raise `SimulationFailed` if the run failed.

    No process outlives the call. At most one signal raises in here, so at least one of the two sweeps is undisturbed.
    """
    job.log.parent.mkdir(parents=True, exist_ok=True)
    short = "/tmp" if os.access("/tmp", os.W_OK) else None  # Ray's socket paths end at 107 bytes
    with (
        _one_signal_raises(),
        tempfile.TemporaryDirectory(prefix="flwr-", dir=short, ignore_cleanup_errors=True) as home,
        job.log.open("ab") as log,
    ):
        flower = _Flower(Path(home), log, tick, interval)
        try:
            try:
                flower.run(job)
            finally:
                flower.sweep()
        finally:
            flower.sweep()


class _Flower:
    """The processes of one run and the questions put to them."""

    def __init__(self, home: Path, log: IO[bytes], tick: Callable[[], None], interval: float) -> None:
        self.home, self.log, self.tick, self.interval = home, log, tick, interval
        self.log_start = log.tell()
        self.started: list[subprocess.Popen[bytes]] = []  # the SuperLink first
        self.over = False  # nobody has anything left to save: the sweep need not ask first

    def run(self, job: SimulationJob) -> None:
        """Start a SuperLink, submit the app, wait for its end and judge it."""
        self._start_superlink()
        run_id = self._submit(job)
        stream = self._start(self.log, "flwr", "log", run_id, "private", "--stream")
        task = self._until(self._find_task, START_SECONDS) or self._fail("Flower accepted the run but did not start it")
        self._until(lambda: not _alive(task))
        self._until(lambda: stream.poll() is not None, GRACE_SECONDS)
        run = self._ask("list", "private", "--run-id", run_id)["runs"][0]
        self._judge(run["status"], run["status-details"])

    def sweep(self) -> None:
        """End every process of this run: politely if it may have something to save, then for certain."""
        family = _family(self.home)
        if not self.over:
            _end(family, signal.SIGTERM, GRACE_SECONDS)
        for _ in range(10):  # a dying Ray may start workers, so look again; a process stuck in the kernel stays
            family = {process for process in family | _family(self.home) if _alive(process)}
            if not family:
                break
            _end(family, signal.SIGKILL, 1.0)
        self.over = True
        for child in self.started:
            child.poll()

    def _start_superlink(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        connection = f'[superlink.private]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        (self.home / "config.toml").write_text(connection)
        options = ["--simulation", "--insecure", "--disable-runtime-dependency-installation"]
        self._start(self.log, "flower-superlink", *options, "--host", "127.0.0.1", "--port", str(port))
        self._until(lambda: _healthy(port), START_SECONDS) or self._fail("Flower's SuperLink does not answer")

    def _submit(self, job: SimulationJob) -> str:
        # In a file, because text given to --run-config cannot hold both kinds of quotes. JSON's escapes are TOML's too.
        text = json.dumps(job.overrides, ensure_ascii=False).replace("\x7f", "\\u007f")
        config = self.home / "run.toml"
        config.write_text(f"overrides = {text}\n", encoding="utf-8")
        cpus = f"init-args-num-cpus={job.workers} client-resources-num-cpus=1"
        federation = ["--federation-config", f"num-supernodes={job.nodes} {cpus}"]
        answer = self._ask("run", str(job.app.resolve()), "private", *federation, "--run-config", str(config))
        return str(answer["run-id"])

    def _find_task(self) -> psutil.Process | None:
        """Return flwr-simulation, a grandchild of the SuperLink; nobody reaps it, so it is there even when dead."""
        executors = psutil.Process(self.started[0].pid).children()
        if executors and not any(map(_alive, executors)):
            self._fail("Flower's SuperExec died before it started the run")
        return next((task for executor in executors for task in executor.children() if _is_task(task)), None)

    def _judge(self, status: str, details: str) -> None:
        self.over = status.startswith("finished")
        reason = details.removeprefix("Simulation failed with exception:").strip()
        if not self.over:
            self._fail(f"the simulation process died while the run was {status}")
        if status != "finished:completed":
            raise SimulationFailed(reason) if reason not in UNSAID else self._fail(f"the run is {status}")

    def _ask(self, *command: str) -> dict[str, Any]:
        """Return the answer of one `flwr` command; its exit code says nothing, the key `success` does."""
        child = self._start(subprocess.PIPE, "flwr", *command, "--format", "json")
        self._until(lambda: child.poll() is not None, START_SECONDS) or self._fail(f"flwr {command[0]} does not end")
        text = child.communicate()[0].decode(errors="replace")
        with suppress(ValueError):
            answer: dict[str, Any] = json.loads(text)
            if answer["success"]:
                return answer
            text = answer["error-message"]
        raise SimulationFailed(text.strip()) if text.strip() else self._fail(f"flwr {command[0]} gave no answer")

    def _start(self, output: IO[bytes] | int, *command: str) -> subprocess.Popen[bytes]:
        """Start a command in its own session, where the terminal's Ctrl-C does not reach it: ending it is our task."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": self.log}
        child = subprocess.Popen(command, env=_environment(self.home), start_new_session=True, **streams)
        self.started.append(child)
        return child

    def _until(self, done: Callable[[], T], seconds: float = math.inf) -> T:
        """Tick until `done` returns something true, which is returned, or the time is over."""
        end, next_tick = time.monotonic() + seconds, 0.0
        while not (value := done()) and (now := time.monotonic()) < end:
            if self.started[0].poll() is not None:
                self._fail("Flower's SuperLink died")
            if now >= next_tick:
                self.tick()
                next_tick = now + self.interval
            time.sleep(min(0.05, self.interval))
        return value

    def _fail(self, what: str) -> NoReturn:
        """Raise with the last errors of the log, for the cases in which Flower does not tell the reason."""
        with Path(self.log.name).open("rb") as log:
            log.seek(max(self.log_start, log.seek(0, os.SEEK_END) - 65536))
            lines = re.sub(r"\x1b\[\d*m", "", log.read().decode(errors="replace")).splitlines()
        lines = [line for line in lines if line.strip()]
        said = [line for line in lines if "ERROR" in line][-3:] or lines[-3:]
        raise SimulationFailed("\n".join([f"{what}; the log {self.log.name} ends with:", *said]))


def _environment(home: Path) -> dict[str, str]:
    """Return our environment made private: nothing is shared with, reported to or fetched from anybody."""
    here, inherited = os.environ, dict(os.environ)
    return (
        inherited
        | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{here.get('PATH', os.defpath)}",  # they call each other by name
            "PYTHONUNBUFFERED": "1",  # otherwise the log lags by pages
            "no_proxy": ",".join(["127.0.0.1", here.get("no_proxy") or here.get("NO_PROXY", "")]),
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
                "SPT_NOENV": "1",
                "RAY_ADDRESS": "local",
            "RAY_TMPDIR": str(home),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "1000000000",  # a ceiling; Ray's own is 30 % of the memory
        }
    )


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    with suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    return False


def _family(home: Path) -> set[psutil.Process]:
    """Return all processes that carry this home in their environment, and their descendants.

    The latter because the environment of SuperExec is unreadable (not dumpable) and Ray's workers may overwrite theirs.
    """
    family = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().real == os.getuid() and process.environ().get("FLWR_HOME") == str(home):
                family |= {process, *process.children(recursive=True)}
    return family


def _is_task(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "flwr-simulation" in process.name() or any("flwr-simulation" in word for word in process.cmdline())
    return False


def _alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _end(family: Iterable[psutil.Process], number: signal.Signals, seconds: float) -> None:
    for process in family:
        with suppress(psutil.Error):
            process.send_signal(number)
    end = time.monotonic() + seconds
    while any(map(_alive, family)) and time.monotonic() < end:
        time.sleep(0.02)


@contextmanager
def _one_signal_raises() -> Iterator[None]:
    """Let the first signal raise as the caller arranged, and ignore the impatient second Ctrl-C while we clean up."""
    raised = False

    def once(number: int, frame: FrameType | None) -> None:
        nonlocal raised
        if raised:
            return
        try:
            handler = previous[number]
            if callable(handler):
                handler(number, frame)
            else:  # the default of SIGTERM and SIGHUP would end us without cleaning up
                sys.exit(128 + number)
        except BaseException:
            raised = True
            raise

    main = threading.current_thread() is threading.main_thread()
    caught = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP] if main else []
    previous = {s: h for s in caught if (h := signal.getsignal(s)) not in (None, signal.SIG_IGN)}
    try:
        for number in previous:
            signal.signal(number, once)
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
