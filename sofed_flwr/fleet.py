"""One run on a fleet of real devices, through a SuperLink that somebody else keeps running.

The ServerApp runs beside the SuperLink and commits every round, so whoever watches may go and come back: a run that
still goes on is watched again, and one that was interrupted is submitted anew, to continue from its last commit.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sofed_flwr.flower_commands import FlowerCommands, RunFailed
from sofed_flwr.run_directory import RunDirectory
from sofed_flwr.run_lock import RunLock

CONNECTION = "fleet"
"""The SuperLink's name in the FLWR_HOME that `sofed provision` makes."""
FAREWELL_SECONDS = 15.0
"""Between the end of a ServerApp and Flower's word of it; a killed one Flower misses only after a minute."""


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
    receipt, lock = job.folder / "flower_run", RunDirectory(job.folder).lock
    with job.log.open("ab") as log:
        flower = FlowerCommands(str(job.home), log, tick, interval, {})
        run_id = _going_on(flower, receipt, lock)
        if run_id is None:
            run_id = flower.submit(job.app, job.overrides, CONNECTION, job.folder)
            receipt.write_text(run_id)
        try:
            if not _watch(flower, run_id, lambda: _is_orphaned(receipt, lock)):
                _stop(flower, run_id)
                flower.fail("The ServerApp's process is gone")
        except KeyboardInterrupt:
            _stop(flower, run_id)
            raise
        flower.judge(CONNECTION, run_id)


def _watch(flower: FlowerCommands, run_id: str, orphaned: Callable[[], bool]) -> bool:
    """Copy the run's log until its end; False if its ServerApp went without a word."""
    stream = flower.start(flower.log, "flwr", "log", run_id, CONNECTION, "--stream")  # ends with the run

    def ended() -> bool:
        return stream.poll() is not None

    try:
        flower.until(lambda: ended() or orphaned())
        return bool(flower.until(ended, FAREWELL_SECONDS))
    finally:
        stream.kill()
        stream.wait()


def _going_on(flower: FlowerCommands, receipt: Path, lock: RunLock) -> str | None:
    """The run that an earlier call submitted, if the SuperLink still runs it."""
    if not receipt.exists():
        return None
    run_id = receipt.read_text()
    try:
        status: str = flower.ask("list", CONNECTION, "--run-id", run_id)["runs"][0]["status"]
    except RunFailed:  # a SuperLink that does not know this run; one that does not answer will say so at once
        return None
    if status.startswith("finished"):
        return None
    if _is_orphaned(receipt, lock):
        _stop(flower, run_id)
        return None
    return run_id


def _is_orphaned(receipt: Path, lock: RunLock) -> bool:
    """Whether the ServerApp of the run that was submitted last began, and is gone."""
    return lock.was_lost_after(receipt.stat().st_mtime)


def _stop(flower: FlowerCommands, run_id: str) -> None:
    with contextlib.suppress(RunFailed):
        flower.ask("stop", run_id, CONNECTION)
