"""Flower's own commands, as this project uses them; every failure is a sentence.

`flwr` exits 0 when a run failed, so its answers are read as JSON with the key `success`. It takes more than a second to
answer, so it is called rarely.
"""

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import IO, Any, NoReturn

from sofed_flwr.core.errors import RunFailed
from sofed_flwr.launch.app_bundle import app_directory

FLEET = "fleet"
"""Name of a site's SuperLink in the FLWR_HOME that `sofed provision` makes."""
START_SECONDS = 120.0  # bound of each command: 1-2 s on a PC, perhaps ten times that on a small board
NO_REASON = {"", "N/A", "Task failed with unknown error.", "An error was encountered. Ending simulation."}
ERROR_LINE = r"(?!.*(Traceback|Exit Code|raised an exception|Ending simulation))(.*ERROR|\w[\w.]*(Error|Exception)\b)"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


@contextmanager
def deferred_signals() -> Iterator[None]:
    """For a block that must not be interrupted: Ctrl-C, SIGTERM and SIGHUP take effect after it."""
    late: list[int] = []
    main = threading.current_thread() is threading.main_thread()  # signals interrupt no other thread
    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if main else ()
    previous = {number: signal.signal(number, lambda number, _: late.append(number)) for number in caught}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if late:
            signal.raise_signal(late[0])


class FlowerCommands:
    """Commands that share one FLWR_HOME, which holds the connections by name, and one log."""

    def __init__(
        self, home: str, log: IO[bytes], tick: Callable[[], None], interval: float, environment: Mapping[str, str]
    ) -> None:
        self.home, self.log, self.log_start, self.tick, self.interval = home, log, log.tell(), tick, interval
        self.environment = {
            **(os.environ | QUIET),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "PYTHONUNBUFFERED": "1",  # for a log without delay
            "TTY_COMPATIBLE": "0",  # no colours in JSON: a notebook's kernel sets FORCE_COLOR
            "no_proxy": ",".join(["127.0.0.1", os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")]),
            "FLWR_HOME": home,
            **environment,
        }
        self.started: list[Popen[bytes]] = []

    def watch(self) -> None:
        """Raise if a process is gone without which waiting is pointless."""

    def submit(self, app: Path, overrides: str, connection: str, scratch: str, *options: str) -> str:
        """Start a run of the app with these overrides; its id. `scratch` takes files for Flower to read."""
        # In a file, because text given to --run-config cannot hold both kinds of quotes; JSON's escapes are TOML's too.
        text = json.dumps(overrides, ensure_ascii=False).replace("\x7f", "\\u007f")
        (config := Path(scratch, "run.toml")).write_text(f"overrides = {text}\n", encoding="utf-8")
        with app_directory(app, scratch) as copy:
            return str(self.ask("run", str(copy), connection, *options, "--run-config", str(config))["run-id"])

    def raise_if_failed(self, connection: str, run_id: str) -> None:
        """Raise the reason if a run failed."""
        run = self.ask("list", connection, "--run-id", run_id)["runs"][0]
        if run["status"] == "finished:stopped":
            raise RunFailed("the run was stopped")
        reason = run["status-details"].removeprefix("Simulation failed with exception:").strip()
        if run["status"] != "finished:completed":
            what = f"The app's process is gone and its run counts as {run['status']}"
            raise RunFailed(reason) if reason not in NO_REASON else self.fail(what)

    def ask(self, *command: str) -> dict[str, Any]:
        """The answer of one `flwr` command."""
        child = self.start(PIPE, "flwr", *command, "--format", "json", errors=PIPE)

        def written() -> list[str] | None:  # read meanwhile: the list of 70 runs is larger than a pipe
            with suppress(TimeoutExpired):
                return [text.decode(errors="replace").strip() for text in child.communicate(timeout=0.05)]
            return None

        text, errors = self.until(written, START_SECONDS) or self.fail(f"`flwr {command[0]}` does not end")
        answer: dict[str, Any] = json.loads(text) if text.startswith("{") else {"error-message": text or errors}
        if not answer.get("success"):
            raise RunFailed(answer["error-message"].strip() or f"`flwr {command[0]}` failed")
        return answer

    def start(self, output: IO[bytes] | int, *command: str, errors: int | None = None) -> Popen[bytes]:
        """A command in its own session, which the terminal's Ctrl-C does not reach: this process has to end it."""
        stderr = errors or self.log
        child = Popen(
            command, stdin=DEVNULL, stdout=output, stderr=stderr, env=self.environment, start_new_session=True
        )
        self.started.append(child)
        return child

    def until(self, done: Callable[[], Any], seconds: float = float("inf")) -> Any:
        """Call `tick` until `done` returns something true or the time is over; return its last value."""
        end, next_tick = time.monotonic() + seconds, 0.0
        while not (value := done()) and (now := time.monotonic()) < end:
            self.watch()
            if now >= next_tick:
                self.tick()
                next_tick = now + self.interval
            time.sleep(min(0.05, self.interval))
        return value

    def fail(self, what: str) -> NoReturn:
        """Raise with the end of the log, for the cases in which Flower itself gives no reason."""
        text = Path(self.log.name).read_bytes()[self.log_start :].decode(errors="replace")
        lines = re.sub(r"\x1b\[\d*m", "", text).splitlines()
        shown = [line for line in lines if re.match(ERROR_LINE, line)] or [line for line in lines if "INFO" not in line]
        end = [f". See {self.log.name}, which ends with:", *dict.fromkeys(shown[-3:])] if shown else []
        raise RunFailed(what + "\n".join(end))


@contextmanager
def site_commands(home: Path) -> Iterator[FlowerCommands]:
    """Commands against a site's SuperLink that belong to no run, so nothing is logged; they work on a full disk."""
    with Path(os.devnull).open("ab") as log:
        yield FlowerCommands(str(home), log, lambda: None, 1.0, {})
