"""`sofed run`: one run, checked before anything starts, watched, and judged by what it left behind.

Simulated or on a fleet, it is the same app with the same overrides; only who starts the processes differs.
"""

import json
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sofed_flwr.app_files import app_directory
from sofed_flwr.assembly import check, check_server, torch_device
from sofed_flwr.component import ConfigError
from sofed_flwr.config import compose
from sofed_flwr.display import RunProgress
from sofed_flwr.fleet import FleetJob, train_on_fleet
from sofed_flwr.flower_commands import RunFailed
from sofed_flwr.launcher import SimulationJob, simulate
from sofed_flwr.run_config import RunConfig
from sofed_flwr.run_directory import RunDirectory

Result = tuple[RunDirectory, dict[str, Any]]
Tick = Callable[[], None]


class InterruptedRunError(RuntimeError):
    """The user stopped the run; the message says how to go on."""


def run_simulation(overrides: Sequence[str]) -> Result:
    """Run to the end; the run's directory and its summary."""
    config = compose(overrides)
    check(config)

    def work(directory: RunDirectory, log: Path, tick: Tick) -> None:
        workers = min(config.workers or len(os.sched_getaffinity(0)), config.clients)
        gpus = torch.cuda.device_count() if torch_device(config).type == "cuda" else 0
        with app_directory() as app:
            simulate(SimulationJob(app, _overrides(config, directory), config.clients, workers, gpus, log), tick)

    return _watched(config, work, "sofed run resume={}")


def run_fleet(overrides: Sequence[str], home: Path, folder: Path) -> Result:
    """Begin a run on the fleet of this FLWR_HOME, or continue the one that `folder` (or `out=`) holds."""
    own = [text for text in overrides if not text.startswith("out=")]
    place = [text for text in overrides if text not in own] or [f"out={_quoted(folder)}"]
    config = compose([*own, *place])
    held = RunDirectory(config.directory)
    if held.summary.exists():
        raise ConfigError(f"out={config.out}: holds a finished run; choose another out")
    if held.config.exists():
        config = compose([*own, f"resume={_quoted(held.path)}"])
    check_server(config)

    def work(directory: RunDirectory, log: Path, tick: Tick) -> None:
        try:
            with app_directory() as app:
                train_on_fleet(FleetJob(app, _overrides(config, directory), home, directory.path, log), tick)
        except RunFailed as error:
            how = "; the same command continues from the last committed round" if directory.config.exists() else ""
            raise RunFailed(f"{error}{how}") from error

    return _watched(config, work, "the same command")


def _watched(config: RunConfig, work: Callable[[RunDirectory, Path, Tick], None], again: str) -> Result:
    directory = RunDirectory(config.directory)
    directory.path.mkdir(parents=True, exist_ok=True)
    directory.summary.unlink(missing_ok=True)
    log = directory.path / "flower.log"
    with RunProgress(directory.log.path, config.rounds) as progress:
        try:
            work(directory, log, progress.update)
        except KeyboardInterrupt as signal:
            started = directory.config.exists()
            how = f"continue with: {again.format(directory.path)}" if started else "no round was committed"
            raise InterruptedRunError(f"interrupted; {how}") from signal
    if not directory.summary.exists():
        raise RunFailed(f"the run ended without a result; see {log}")
    return directory, json.loads(directory.summary.read_text())


def _overrides(config: RunConfig, directory: RunDirectory) -> str:
    place = f"resume={_quoted(directory.path)}" if config.resume else f"out={_quoted(directory.path)}"
    own = [text for text in config.overrides if text.partition("=")[0] not in ("out", "resume")]
    return shlex.join([*own, place])


def _quoted(path: Path) -> str:
    """A path as a quoted string of Hydra's grammar, in which a bare one must not hold spaces or brackets."""
    return "'" + str(path).replace("\\", "\\\\").replace("'", "\\'") + "'"
