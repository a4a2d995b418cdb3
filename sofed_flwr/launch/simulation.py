"""One private Flower simulation: this process starts and ends all its processes.

A bare `flwr run` reuses a SuperLink left by an earlier run, exits 0 when the run failed and leaves Ray behind on
Ctrl-C. So every run gets its own SuperLink, FLWR_HOME and Ray, none of which accepts requests of another user of the
machine, and all of which end with this process (`watchdog.py`). Flower's commands take more than a second, so a run is
watched through its process.
"""

import os
import secrets
import socket
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from sofed_flwr.launch.flwr_cli import START_SECONDS, FlowerCommands, deferred_signals
from sofed_flwr.launch.watchdog import GRACE_SECONDS, MARK, alive, end_all, scratch_directory
from sofed_flwr.launch.workers import Workers

MALLOC_SETTINGS = dict.fromkeys(["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"], str(2**30))  # see _environment
CONNECTION = "private"


@dataclass(frozen=True)
class SimulationJob:
    """What to run, on how many simulated devices, and where the output goes."""

    app: Path  # with pyproject.toml: core/app_files
    overrides: str  # value of the run-config key `overrides`
    nodes: int  # simulated devices
    workers: Workers
    log: Path  # receives, appended, everything Flower, Ray and the apps print


def simulate(job: SimulationJob, tick: Callable[[], None], interval: float = 0.25) -> None:
    """Run to the end, calling `tick` every `interval` seconds; raise `RunFailed` if it failed; leave nothing."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log, scratch_directory(log) as home:
        flower = _Flower(home, log, tick, interval, _environment(home))
        with closing(flower), closing(flower):  # twice: a signal may interrupt the first one before it blocks signals
            flower.run(job)


class _Flower(FlowerCommands):
    over = False  # True: all output is written, so close() may kill at once

    def run(self, job: SimulationJob) -> None:
        self._start_superlink()
        run_id = self._submit(job)
        stream = self.start(self.log, "flwr", "log", run_id, CONNECTION, "--stream")
        task = self.until(self._find_task, START_SECONDS) or self.fail("Flower accepted the run but did not start it")
        self.until(lambda: not alive(task))
        self.until(lambda: stream.poll() is not None, GRACE_SECONDS)
        self.over = True
        self.raise_if_failed(CONNECTION, run_id)

    def watch(self) -> None:
        if self.started[0].poll() is not None:
            self.fail("Flower's SuperLink died")

    def close(self) -> None:
        """End all processes; a second Ctrl-C does not interrupt this."""
        with deferred_signals():
            end_all(self.home, 0.0 if self.over else GRACE_SECONDS)
            for child in self.started:
                child.poll()

    def _start_superlink(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            host, port = address = probe.getsockname()
        connection = f'[superlink.{CONNECTION}]\naddress = "{host}:{port}"\ninsecure = true\n'
        Path(self.home, "config.toml").write_text(connection)
        options = ("--simulation", "--insecure", "--disable-runtime-dependency-installation")
        program = (sys.executable, "-P", "-m", "sofed_flwr.launch.private_superlink")
        self.start(self.log, *program, *options, "--host", host, "--port", str(port))

        def answers() -> bool:  # it opens its port last, so this says as much as its /health
            with socket.socket() as caller:
                return caller.connect_ex(address) == 0

        self.until(answers, START_SECONDS) or self.fail("Flower's SuperLink does not answer")

    def _submit(self, job: SimulationJob) -> str:
        workers = job.workers
        size = f"num-supernodes={job.nodes} init-args-num-cpus={workers.number} client-resources-num-cpus=1"
        if workers.gpus:
            size += f" init-args-num-gpus={workers.gpus} client-resources-num-gpus={workers.share}"
        return self.submit(job.app, job.overrides, CONNECTION, self.home, "--federation-config", size)

    def _find_task(self) -> psutil.Process | None:
        """Return flwr-simulation, a child of SuperExec, or a dead SuperExec; unreaped, both remain visible."""
        with suppress(psutil.NoSuchProcess):  # short-lived helpers, such as ldconfig
            executors = psutil.Process(self.started[0].pid).children()
            tasks = [task for executor in executors for task in executor.children()]
            tasks = [task for task in tasks if "flwr-simulation" in str(task.as_dict(["name", "cmdline"]))]
            return next(iter(tasks + [executor for executor in executors if not alive(executor)]), None)
        return None


def _environment(home: str) -> dict[str, str]:
    return {
        **(MALLOC_SETTINGS | {name: os.environ[name] for name in MALLOC_SETTINGS if name in os.environ}),
        # glibc would give activations back to the kernel at every step: 5-13 % of the time
        MARK: home,
        "SPT_NOENV": "1",  # Ray's agents would overwrite their environment, and with it our mark
        "RAY_TMPDIR": home,
        "RAY_ADDRESS": "local",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on Linux too: listen on loopback, not on all interfaces
        "RAY_AUTH_MODE": "token",  # or any user of this machine could give it work
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_DEDUP_LOGS": "0",
        "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "1000000000",  # a ceiling; Ray's own is 30 % of the memory
    }
