"""A real federation on loopback, started by the scripts that `sofed provision` ships: server, devices and runs."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from sofed_flwr.fleet.provision.build import provision
from sofed_flwr.fleet.provision.registration import register
from sofed_flwr.storage.metrics_log import Row, read_rows
from tests.support.fleet_device import LOG_TASKS, Node
from tests.support.fleet_processes import (
    Program,
    answer_to,
    end,
    free_port,
    listens,
    processes,
    superlink_command,
    wait_for,
)


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
        self.superlink = Program(superlink_command(self.site), folder / "superlink.log")
        habits = [LOG_TASKS] * (devices - 1) + [LOG_TASKS + hostile]
        self.nodes = [Node(self.site, k, folder, own) for k, own in enumerate(habits)]

    def start_server(self) -> None:
        self.superlink.start()
        port = int(self.site.settings["SOFED_CONTROL_PORT"])
        wait_for(lambda: listens(port), "the SuperLink")

    def kill_server(self) -> None:
        """kill -9 of the SuperLink."""
        assert self.superlink.process is not None
        self.superlink.process.kill()
        self.superlink.process.wait()

    def register(self) -> None:
        register(self.site, lambda _: None)

    def run(self, *overrides: str, out: str = "run") -> "subprocess.Popen[str]":
        """`sofed run --fleet`, as a user types it."""
        return self._sofed("run", "--fleet", str(self.site.directory), f"out={self.folder / out}", *overrides)

    def stop_run(self) -> "subprocess.Popen[str]":
        """`sofed stop`."""
        return self._sofed("stop", str(self.site.directory))

    def _sofed(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [str(Path(sys.executable).parent / "sofed"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_like_a_terminal,
        )

    def wait_until_watched(self, viewer: "subprocess.Popen[str]") -> None:
        """A run's log has arrived at this command."""

        def watches() -> bool:
            with suppress(psutil.Error):
                children = psutil.Process(viewer.pid).children()
                return any({"log", "--stream"} <= set(child.cmdline()) for child in children)
            return False

        wait_for(lambda: viewer.poll() is not None or watches(), "a viewer")
        assert viewer.poll() is None, viewer.communicate()

    def control_answer(self, user: int) -> str:
        """What the port that steers the federation says to a user of this machine."""
        return answer_to(user, int(self.site.settings["SOFED_CONTROL_PORT"]), tls=True)

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


def _like_a_terminal() -> None:
    """A test suite in the background, or under nohup, ignores signals, and so would its children."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
