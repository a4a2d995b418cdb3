"""One private Flower simulation, owned from its first process to its last.

A bare `flwr run` reuses a SuperLink left by an earlier run, exits 0 when the run failed and leaves Ray behind on
Ctrl-C. So every run gets its own SuperLink, FLWR_HOME and Ray. Their processes inherit the path of that home: by this
mark we find all of them again. Flower's commands take more than a second, so a run is watched through its process.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import psutil

from sofed_flwr.flower_commands import START_SECONDS, FlowerCommands

GRACE_SECONDS = 3.0  # for what may still be writing: the log stream after a run, the apps of an interrupted one
KEPT = dict.fromkeys(["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"], str(2**30))  # see _environment
CONNECTION = "private"


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
    """Run to the end, calling `tick` every `interval` seconds; raise `RunFailed` if it failed; leave nothing."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    short = "/tmp" if os.access("/tmp", os.W_OK) else None  # the path of a Ray socket may have 107 bytes
    with TemporaryDirectory(prefix="flwr-", dir=short, ignore_cleanup_errors=True) as home, job.log.open("ab") as log:
        flower = _Flower(home, log, tick, interval)
        with closing(flower), closing(flower):  # twice, for a signal that strikes just before the first turns deaf
            flower.run(job)


class _Flower(FlowerCommands):
    def __init__(self, home: str, log: IO[bytes], tick: Callable[[], None], interval: float) -> None:
        super().__init__(home, log, tick, interval, _environment(home))
        self.over = False  # nobody has anything left to save, so close() need not be polite

    def run(self, job: SimulationJob) -> None:
        self._start_superlink()
        run_id = self._submit(job)
        stream = self.start(self.log, "flwr", "log", run_id, CONNECTION, "--stream")
        task = self.until(self._find_task, START_SECONDS) or self.fail("Flower accepted the run but did not start it")
        self.until(lambda: not _alive(task))
        self.until(lambda: stream.poll() is not None, GRACE_SECONDS)
        self.over = True
        self.judge(CONNECTION, run_id)

    def watch(self) -> None:
        if self.started[0].poll() is not None:
            self.fail("Flower's SuperLink died")

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
        connection = f'[superlink.{CONNECTION}]\naddress = "{host}:{port}"\ninsecure = true\n'
        Path(self.home, "config.toml").write_text(connection)
        options = ("--simulation", "--insecure", "--disable-runtime-dependency-installation")
        self.start(self.log, "flower-superlink", *options, "--host", host, "--port", str(port))

        def answers() -> bool:  # it opens its port last, so this says as much as its /health
            with socket.socket() as caller:
                return caller.connect_ex(address) == 0

        self.until(answers, START_SECONDS) or self.fail("Flower's SuperLink does not answer")

    def _submit(self, job: SimulationJob) -> str:
        size = f"num-supernodes={job.nodes} init-args-num-cpus={job.workers} client-resources-num-cpus=1"
        if job.gpus:
            size += f" init-args-num-gpus={job.gpus} client-resources-num-gpus={job.gpus / job.workers:.3f}"
        return self.submit(job.app, job.overrides, CONNECTION, Path(self.home), "--federation-config", size)

    def _find_task(self) -> psutil.Process | None:
        """Return flwr-simulation, a child of SuperExec, or a dead SuperExec; unreaped, both remain visible."""
        with suppress(psutil.NoSuchProcess):  # short-lived helpers, such as ldconfig
            executors = psutil.Process(self.started[0].pid).children()
            tasks = [task for executor in executors for task in executor.children()]
            tasks = [task for task in tasks if "flwr-simulation" in str(task.as_dict(["name", "cmdline"]))]
            return next(iter(tasks + [executor for executor in executors if not _alive(executor)]), None)
        return None


def _environment(home: str) -> dict[str, str]:
    return {
        **(KEPT | {name: os.environ[name] for name in KEPT if name in os.environ}),
        # glibc would give activations back to the kernel at every step: 5-13 % of the time
        "SPT_NOENV": "1",  # Ray's agents would overwrite their environment, and with it our mark
        "RAY_TMPDIR": home,
        "RAY_ADDRESS": "local",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux too: listen on loopback, not on all interfaces
        "RAY_DEDUP_LOGS": "0",
        "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "1000000000",  # a ceiling; Ray's own is 30 % of the memory
    }


def _alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
