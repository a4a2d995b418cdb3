"""One run on a fleet of real devices, through a SuperLink that somebody else keeps running.

The ServerApp runs beside the SuperLink and commits every round, so whoever watches may go and come back: a run that
still goes on is watched again, and one that was interrupted is submitted anew, to continue from its last commit.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sofed_flwr.flower_commands import FlowerCommands, RunFailed

CONNECTION = "fleet"
"""The SuperLink's name in the FLWR_HOME that `sofed provision` makes."""


@dataclass(frozen=True)
class FleetJob:
    """What to run, through which SuperLink, and where the output goes."""

    app: Path  # directory with pyproject.toml
    overrides: str  # value of the run-config key `overrides`
    home: Path  # FLWR_HOME that knows the SuperLink
    folder: Path  # of the run, for the id Flower gave it
    log: Path  # receives, appended, what the ServerApp prints


def train_on_fleet(job: FleetJob, tick: Callable[[], None], interval: float = 0.25) -> None:
    """Run to the end, calling `tick` every `interval` seconds; raise `RunFailed` if it failed.

    Ctrl-C stops the run on the server, too.
    """
    receipt = job.folder / "flower_run"
    with job.log.open("ab") as log:
        flower = FlowerCommands(str(job.home), log, tick, interval, {})
        run_id = _going_on(flower, receipt) or flower.submit(job.app, job.overrides, CONNECTION, job.folder)
        receipt.write_text(run_id)
        stream = flower.start(log, "flwr", "log", run_id, CONNECTION, "--stream")  # ends with the run
        try:
            flower.until(lambda: stream.poll() is not None)
        except KeyboardInterrupt:
            with contextlib.suppress(RunFailed):
                flower.ask("stop", run_id, CONNECTION)
            raise
        finally:
            stream.kill()
            stream.wait()
        flower.judge(CONNECTION, run_id)


def _going_on(flower: FlowerCommands, receipt: Path) -> str | None:
    """The run that an earlier call submitted, if the SuperLink still runs it."""
    if not receipt.exists():
        return None
    run_id = receipt.read_text()
    try:
        status: str = flower.ask("list", CONNECTION, "--run-id", run_id)["runs"][0]["status"]
    except RunFailed:  # a SuperLink that does not know this run; one that does not answer will say so at once
        return None
    return None if status.startswith("finished") else run_id
