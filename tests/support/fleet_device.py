"""A device of a federation on loopback: a SuperNode under a supervisor that does what its systemd unit says.

It is always started again. Each device logs the tasks it began, so that a fault can meet it in the middle of one.
"""

import os
import signal
import threading
from pathlib import Path
from typing import NamedTuple

from sofed_flwr.fleet.provision.site import Site
from tests.support.fleet_processes import Program, end, free_port, processes, supernode_command

LOG_TASKS = '''
import sys
if "flwr-clientapp" in " ".join(sys.orig_argv):
    import os, time
    import sofed_flwr.flower.messages as bridge
    unpack = bridge.unpack_task

    def unpack_task(message, context):
        """The task has arrived: a line in the task log, and time for something to happen to this process."""
        task, shared = unpack(message, context)
        with open(os.environ["FLEET_TASK_LOG"], "a") as log:
            log.write(f"{message.metadata.created_at} {message.metadata.run_id} {task.round} {os.getpid()}\\n")
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


class Node:
    """One device: a SuperNode that is started again whenever it ends, with its spool and its state."""

    def __init__(self, site: Site, number: int, folder: Path, habits: str) -> None:
        """`habits` is Python that every process of the device begins with."""
        self.number = number
        self.spool, self.state = folder / f"spool-{number}", folder / f"state-{number}"
        self.files = self.state / str(number)
        self.home = self.state / "flower"
        self.task_log = folder / f"tasks-{number}"
        self.spool.mkdir(parents=True)
        command = supernode_command(site, number, source=self.spool, state=self.state, port=free_port())
        code = _sitecustomize(folder / f"habits-{number}", habits)
        environment = {
            "SOFED_THREADS": "1",  # several devices on one machine must not each take all of its cores
            "FLEET_TASK_LOG": str(self.task_log),
            "PYTHONPATH": os.pathsep.join([str(code), os.environ.get("PYTHONPATH", "")]),
        }
        self.program = Program(command, folder / f"device-{number}.log", **environment)
        unit = (site.device(number) / "sofed-supernode.service").read_text()
        self._restart_s = float(unit.partition("RestartSec=")[2].split()[0])
        self._stopping = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)

    def start(self) -> None:
        self.program.start()
        self._supervisor.start()

    def work(self, round_number: int) -> Work | None:
        """What it did last for this round, finished or not."""
        lines = self.task_log.read_text().splitlines() if self.task_log.exists() else []
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
            if process.poll() is not None and not self._stopping.wait(self._restart_s):
                self.program.start()
            self._stopping.wait(0.2)


def _sitecustomize(folder: Path, code: str) -> Path:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return folder
