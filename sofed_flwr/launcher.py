"""One private Flower simulation, owned from its first process to its last.

A bare `flwr run` reuses a SuperLink left by an earlier run, exits 0 when the run failed and leaves Ray behind on
Ctrl-C. So every run gets its own SuperLink, FLWR_HOME and Ray. Their processes inherit the path of that home: by this
mark we find all of them again. Flower's commands take more than a second, so a run is watched through its process.
"""

import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryDirectory
from typing import IO, Any, NoReturn

import psutil

START_SECONDS = 120.0  # bound of each command: 1-2 s on a PC, perhaps ten times that on a small board
GRACE_SECONDS = 3.0  # for what may still be writing: the log stream after a run, the apps of an interrupted one
UNSAID = {"", "N/A", "Task failed with unknown error.", "An error was encountered. Ending simulation."}
TELLING = r"(?!.*(Traceback|Exit Code|raised an exception|Ending simulation))(.*ERROR|\w[\w.]*(Error|Exception)\b)"
KEPT = dict.fromkeys(["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"], str(2**30))  # see _environment
SILENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


class SimulationFailed(RuntimeError):  # noqa: N818
    """The run ended, but not well; the message is the app's own reason."""


@dataclass(frozen=True)
class SimulationJob:
    """What to run, on how many simulated devices, and where the output goes."""

    app: Path  # directory with pyproject.toml
    overrides: str  # value of the run-config key `overrides`
    nodes: int  # simulated devices
    workers: int  # client processes at a time, one cpu each
    gpus: int  # that the workers share
    log: Path  # receives, appended, everything Flower, Ray and the apps print


def simulate(job: SimulationJob, tick: Callable[[], None], interval: float = 0.25) -> None:
    """Run to the end, calling `tick` every `interval` seconds; raise `SimulationFailed` if it failed; leave nothing."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    short = "/tmp" if os.access("/tmp", os.W_OK) else None  # the path of a Ray socket may have 107 bytes
    with TemporaryDirectory(prefix="flwr-", dir=short, ignore_cleanup_errors=True) as home, job.log.open("ab") as log:
        flower = _Flower(home, log, tick, interval)
        with closing(flower), closing(flower):  # twice, for a signal that strikes just before the first turns deaf
            flower.run(job)


class _Flower:
    def __init__(self, home: str, log: IO[bytes], tick: Callable[[], None], interval: float) -> None:
        self.home, self.log, self.log_start, self.tick, self.interval = home, log, log.tell(), tick, interval
        self.started: list[Popen[bytes]] = []  # the SuperLink first
        self.over = False  # nobody has anything left to save, so close() need not be polite

    def run(self, job: SimulationJob) -> None:
        self._start_superlink()
        run_id = self._submit(job)
        stream = self._start(self.log, "flwr", "log", run_id, "private", "--stream")
        task = self._until(self._find_task, START_SECONDS) or self._fail("Flower accepted the run but did not start it")
        self._until(lambda: not _alive(task))
        self._until(lambda: stream.poll() is not None, GRACE_SECONDS)
        run = self._ask("list", "private", "--run-id", run_id)["runs"][0]
        self.over = True
        reason = run["status-details"].removeprefix("Simulation failed with exception:").strip()
        if run["status"] != "finished:completed":
            what = f"The simulation process is gone and its run counts as {run['status']}"
            raise SimulationFailed(reason) if reason not in UNSAID else self._fail(what)

    def close(self) -> None:
        """End all processes, deaf to an impatient second Ctrl-C, which is delivered afterwards."""
        late: list[int] = []
        main = threading.current_thread() is threading.main_thread()  # signals interrupt no other thread
        caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if main else ()
        previous = {number: signal.signal(number, lambda number, _: late.append(number)) for number in caught}
        try:
            self._sweep()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            if late:
                signal.raise_signal(late[0])

    def _sweep(self) -> None:
        kill = time.monotonic() + (0.0 if self.over else GRACE_SECONDS)
        known: set[psutil.Process] = set()
        # Looks again each time, as a dying Ray starts workers; bounded, as a process can be stuck in the kernel.
        while (family := set(filter(_alive, known | self._family()))) and time.monotonic() < kill + 10.0:
            polite = time.monotonic() < kill
            for process in family - known if polite else family:
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGTERM if polite else signal.SIGKILL)
            known |= family
            time.sleep(0.05)
        for child in self.started:
            child.poll()

    def _family(self) -> set[psutil.Process]:
        """Return all our processes that carry this home, and their descendants: that of SuperExec may be unreadable."""
        family: set[psutil.Process] = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.uids().real == os.getuid() and process.environ().get("FLWR_HOME") == self.home:
                    family |= {process, *process.children(recursive=True)}
        return family

    def _start_superlink(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            host, port = address = probe.getsockname()
        Path(self.home, "config.toml").write_text(f'[superlink.private]\naddress = "{host}:{port}"\ninsecure = true\n')
        options = ("--simulation", "--insecure", "--disable-runtime-dependency-installation")
        self._start(self.log, "flower-superlink", *options, "--host", host, "--port", str(port))

        def answers() -> bool:  # it opens its port last, so this says as much as its /health
            with socket.socket() as caller:
                return caller.connect_ex(address) == 0

        self._until(answers, START_SECONDS) or self._fail("Flower's SuperLink does not answer")

    def _submit(self, job: SimulationJob) -> str:
        # In a file, because text given to --run-config cannot hold both kinds of quotes; JSON's escapes are TOML's too.
        text = json.dumps(job.overrides, ensure_ascii=False).replace("\x7f", "\\u007f")
        (config := Path(self.home, "run.toml")).write_text(f"overrides = {text}\n", encoding="utf-8")
        size = f"num-supernodes={job.nodes} init-args-num-cpus={job.workers} client-resources-num-cpus=1"
        if job.gpus:
            size += f" init-args-num-gpus={job.gpus} client-resources-num-gpus={job.gpus / job.workers:.3f}"
        options = ("--federation-config", size, "--run-config", str(config))
        return str(self._ask("run", str(job.app.resolve()), "private", *options)["run-id"])

    def _find_task(self) -> psutil.Process | None:
        """Return flwr-simulation, a child of SuperExec, or a dead SuperExec; unreaped, both remain visible."""
        with suppress(psutil.NoSuchProcess):  # short-lived helpers, such as ldconfig
            executors = psutil.Process(self.started[0].pid).children()
            tasks = [task for executor in executors for task in executor.children()]
            tasks = [task for task in tasks if "flwr-simulation" in str(task.as_dict(["name", "cmdline"]))]
            return next(iter(tasks + [executor for executor in executors if not _alive(executor)]), None)
        return None

    def _ask(self, *command: str) -> dict[str, Any]:
        """Return the answer of one `flwr` command; its exit code says nothing, the key `success` does."""
        child = self._start(PIPE, "flwr", *command, "--format", "json")
        self._until(lambda: child.poll() is not None, START_SECONDS) or self._fail(f"`flwr {command[0]}` does not end")
        text = child.communicate()[0].decode(errors="replace")
        answer: dict[str, Any] = json.loads(text) if text.startswith("{") else {"error-message": text}
        if not answer.get("success"):
            raise SimulationFailed(answer["error-message"].strip() or f"`flwr {command[0]}` failed, see the log")
        return answer

    def _start(self, output: IO[bytes] | int, *command: str) -> Popen[bytes]:
        # In its own session, where the terminal's Ctrl-C does not reach it: ending it is our task.
        env = _environment(self.home)
        child = Popen(command, stdin=DEVNULL, stdout=output, stderr=self.log, env=env, start_new_session=True)
        self.started.append(child)
        return child

    def _until(self, done: Callable[[], Any], seconds: float = float("inf")) -> Any:
        """Tick until `done` returns something true or the time is over; return its last value."""
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
        """Raise with the end of the log, for the cases in which Flower itself gives no reason."""
        text = Path(self.log.name).read_bytes()[self.log_start :].decode(errors="replace")
        lines = re.sub(r"\x1b\[\d*m", "", text).splitlines()
        said = [line for line in lines if re.match(TELLING, line)] or [line for line in lines if "INFO" not in line]
        raise SimulationFailed("\n".join([f"{what}. See {self.log.name}, which ends with:", *dict.fromkeys(said[-3:])]))


def _environment(home: str) -> dict[str, str]:
    return {
        **KEPT,  # glibc would give activations back to the kernel at every step: 5-13 % of the time
        **(os.environ | SILENT),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",  # for a log without delay
        "SPT_NOENV": "1",  # Ray's agents would overwrite their environment, and with it our mark
        "no_proxy": ",".join(["127.0.0.1", os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")]),
        **dict.fromkeys(["FLWR_HOME", "RAY_TMPDIR"], home),
        "RAY_ADDRESS": "local",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux too: listen on loopback, not on all interfaces
        "RAY_DEDUP_LOGS": "0",
        "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "1000000000",  # a ceiling; Ray's own is 30 % of the memory
    }


def _alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
