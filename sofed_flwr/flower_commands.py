"""Flower's own commands, as this project uses them: started, asked, watched; whatever fails is a sentence.

`flwr` exits 0 when a run failed, and takes more than a second to answer. So its answers are read as JSON, where the key
`success` tells, and rarely asked for.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import IO, Any, NoReturn

START_SECONDS = 120.0  # bound of each command: 1-2 s on a PC, perhaps ten times that on a small board
UNSAID = {"", "N/A", "Task failed with unknown error.", "An error was encountered. Ending simulation."}
TELLING = r"(?!.*(Traceback|Exit Code|raised an exception|Ending simulation))(.*ERROR|\w[\w.]*(Error|Exception)\b)"
SILENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


class RunFailed(RuntimeError):  # noqa: N818
    """The run ended, but not well; the message is the app's own reason."""


class FlowerCommands:
    """Commands that share one FLWR_HOME, which holds the connections by name, and one log."""

    def __init__(
        self, home: str, log: IO[bytes], tick: Callable[[], None], interval: float, environment: Mapping[str, str]
    ) -> None:
        self.home, self.log, self.log_start, self.tick, self.interval = home, log, log.tell(), tick, interval
        self.environment = {
            **(os.environ | SILENT),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
            "PYTHONUNBUFFERED": "1",  # for a log without delay
            "no_proxy": ",".join(["127.0.0.1", os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")]),
            "FLWR_HOME": home,
            **environment,
        }
        self.started: list[Popen[bytes]] = []

    def watch(self) -> None:
        """Raise if something is gone without which waiting makes no sense."""

    def submit(self, app: Path, overrides: str, connection: str, folder: Path, *options: str) -> str:
        """Start a run of the app with these overrides; its id. `folder` takes a file for Flower to read."""
        # In a file, because text given to --run-config cannot hold both kinds of quotes; JSON's escapes are TOML's too.
        text = json.dumps(overrides, ensure_ascii=False).replace("\x7f", "\\u007f")
        (config := folder / "run.toml").write_text(f"overrides = {text}\n", encoding="utf-8")
        return str(self.ask("run", str(app.resolve()), connection, *options, "--run-config", str(config))["run-id"])

    def judge(self, connection: str, run_id: str) -> None:
        """Raise the reason if a run did not end well."""
        run = self.ask("list", connection, "--run-id", run_id)["runs"][0]
        reason = run["status-details"].removeprefix("Simulation failed with exception:").strip()
        if run["status"] != "finished:completed":
            what = f"The app's process is gone and its run counts as {run['status']}"
            raise RunFailed(reason) if reason not in UNSAID else self.fail(what)

    def ask(self, *command: str) -> dict[str, Any]:
        """The answer of one `flwr` command."""
        child = self.start(PIPE, "flwr", *command, "--format", "json")
        self.until(lambda: child.poll() is not None, START_SECONDS) or self.fail(f"`flwr {command[0]}` does not end")
        text = child.communicate()[0].decode(errors="replace")
        answer: dict[str, Any] = json.loads(text) if text.startswith("{") else {"error-message": text}
        if not answer.get("success"):
            raise RunFailed(answer["error-message"].strip() or f"`flwr {command[0]}` failed, see the log")
        return answer

    def start(self, output: IO[bytes] | int, *command: str) -> Popen[bytes]:
        """A command in its own session, where the terminal's Ctrl-C does not reach it: ending it is our task."""
        child = Popen(
            command, stdin=DEVNULL, stdout=output, stderr=self.log, env=self.environment, start_new_session=True
        )
        self.started.append(child)
        return child

    def until(self, done: Callable[[], Any], seconds: float = float("inf")) -> Any:
        """Tick until `done` returns something true or the time is over; return its last value."""
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
        said = [line for line in lines if re.match(TELLING, line)] or [line for line in lines if "INFO" not in line]
        raise RunFailed("\n".join([f"{what}. See {self.log.name}, which ends with:", *dict.fromkeys(said[-3:])]))
