"""One run on a fleet of real devices, through a SuperLink that is already running.

The ServerApp runs beside the SuperLink and commits every round, so a viewer may disconnect and come back: a run that is
still active is watched again, and an interrupted one is submitted again and continues from its last commit. A fleet
does one run at a time, because two would discard each other's state on the devices.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sofed_flwr.core.errors import ConfigError, RunFailed, RunGoesOnError, TerminatedError
from sofed_flwr.launch.fleet_runs import FleetRuns
from sofed_flwr.launch.flwr_cli import FLEET, FlowerCommands, deferred_signals, site_commands
from sofed_flwr.launch.watchdog import MARK, scratch_directory
from sofed_flwr.storage.run_lock import WAIT_SECONDS

END_NOTICE_SECONDS = 15.0
"""Between the end of a ServerApp and Flower's report of it; a killed one Flower detects only after a minute."""
ENDING_SECONDS = WAIT_SECONDS
"""A run that fails so soon after it was found was already ending then."""


@dataclass(frozen=True)
class FleetJob:
    """What to run, through which SuperLink, and where the output goes."""

    app: Path  # with pyproject.toml: core/app_files
    overrides: str  # value of the run-config key `overrides`
    site: Path  # of `sofed provision`
    folder: Path  # of the run
    log: Path  # receives, appended, what the ServerApp prints


def flower_home(site: Path) -> Path:
    """FLWR_HOME that knows the site's SuperLink; a directory that is no site is refused."""
    home = site.resolve() / "server" / "flower"
    if not (home / "config.toml").is_file():
        raise ConfigError(f"{site}: is not a site; make one with sofed provision")
    return home


def train_on_fleet(job: FleetJob, tick: Callable[[], None], interval: float = 0.25) -> None:
    """Run to the end, calling `tick` every `interval` seconds; raise `RunFailed` if it failed.

    Ctrl-C stops the run on the server, if this call submitted it. A viewer's Ctrl-C and a closed terminal do not.
    """
    home = flower_home(job.site)
    with job.log.open("ab") as log, scratch_directory(log) as scratch:
        runs = FleetRuns(FlowerCommands(str(home), log, tick, interval, {MARK: scratch}), home)
        while not _train(runs, job, scratch):
            pass


def _train(runs: FleetRuns, job: FleetJob, scratch: str) -> bool:
    """Train to the end; False if the run that was found was already ending, and has to be submitted again.

    A ServerApp outlives its SuperLink by seconds: after a restart the old run is listed as active, and then ends.
    """
    run = None
    try:
        with deferred_signals():  # a run must not be submitted without being recorded
            run = _join_or_submit(runs, job, scratch)
        found = time.monotonic()
        seen = _watch(runs.flower, run.id, lambda: runs.is_orphaned(run.id))
    except KeyboardInterrupt as signal:
        if run is not None and (not run.submitted or isinstance(signal, TerminatedError)):
            how = f"the same command shows it again, sofed stop {job.site} ends it"
            raise RunGoesOnError(f"the run in {job.folder} goes on; {how}") from signal
        if run is not None:
            with deferred_signals():
                runs.stop(run.id)
        raise
    if not seen:
        runs.stop(run.id)
        runs.flower.fail("The ServerApp's process is gone")
    soon = time.monotonic() - found < ENDING_SECONDS
    try:
        runs.flower.raise_if_failed(FLEET, run.id)
    except RunFailed:
        if run.submitted or not soon or runs.was_stopped(run.id):
            raise
        return False
    return True


def stop_runs(site: Path) -> list[str]:
    """Stop all runs of the fleet; returns their names."""
    home = flower_home(site)
    with site_commands(home) as flower:
        runs = FleetRuns(flower, home)
        going = {run_id: runs.name(run_id) for run_id in runs.unfinished()}
        for run_id in going:
            runs.stop(run_id)
        if left := going.keys() & set(runs.unfinished() if going else []):
            raise RunFailed(f"not stopped: {', '.join(going[run_id] for run_id in left)}")
    return list(going.values())


class _Run(NamedTuple):
    id: str
    submitted: bool  # by this call


def _join_or_submit(runs: FleetRuns, job: FleetJob, scratch: str) -> _Run:
    """The run of this folder, if it is still active; else a new one, if the fleet is idle."""
    with runs.alone():
        for run_id in runs.unfinished():
            if runs.is_orphaned(run_id):
                runs.stop(run_id)
            elif runs.folder(run_id) == job.folder:
                return _Run(run_id, submitted=False)
            else:
                how = f"wait for its end, or sofed stop {job.site}"
                raise ConfigError(f"--fleet {job.site}: is busy with {runs.name(run_id)}; {how}")
        run_id = runs.flower.submit(job.app, job.overrides, FLEET, scratch)
        runs.record(run_id, job.folder)
        return _Run(run_id, submitted=True)


def _watch(flower: FlowerCommands, run_id: str, orphaned: Callable[[], bool]) -> bool:
    """Copy the run's log until its end; False if its ServerApp disappeared."""
    stream = flower.start(flower.log, "flwr", "log", run_id, FLEET, "--stream")  # ends with the run

    def ended() -> bool:
        return stream.poll() is not None

    try:
        flower.until(lambda: ended() or orphaned())
        return bool(flower.until(ended, END_NOTICE_SECONDS))
    finally:
        stream.kill()
        stream.wait()
