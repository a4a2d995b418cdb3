"""`sofed run`: one run, checked before anything starts, and successful if its files are complete.

A simulation and a fleet run the same app with the same overrides; only the start of processes differs.
"""

import os
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sofed_flwr.build import check, check_server
from sofed_flwr.config.compose import compose
from sofed_flwr.config.override_text import quoted
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.app_files import app_files
from sofed_flwr.core.errors import ConfigError, DamagedFileError, InterruptedRunError, RunFailed
from sofed_flwr.launch.fleet_run import FleetJob, flower_home, train_on_fleet
from sofed_flwr.launch.progress import RunProgress, console
from sofed_flwr.launch.simulation import SimulationJob, simulate
from sofed_flwr.launch.workers import plan_workers
from sofed_flwr.models.accelerator import torch_device
from sofed_flwr.storage.generations import read_file
from sofed_flwr.storage.run_directory import RunDirectory

Result = tuple[RunDirectory, dict[str, Any]]
Tick = Callable[[], None]
NOTHING = "no round was committed"
LOG = "flower.log"
"""What Flower, Ray and the apps print, in the run directory."""


def run_simulation(overrides: Sequence[str]) -> Result:
    """Run to the end; the run's directory and its summary."""
    config = compose(overrides)
    directory = RunDirectory(config.directory)
    if config.resume and not config.restart and (summary := directory.result(config.rounds)) is not None:
        console.print(
            f"{directory.path} is finished: its {config.rounds} rounds are done", soft_wrap=True, markup=False
        )
        return directory, summary
    check(config)
    gpus = torch.cuda.device_count() if torch_device(config).type == "cuda" else 0
    workers = plan_workers(config.workers, config.clients, len(os.sched_getaffinity(0)), gpus)
    log = directory.path / LOG
    job = SimulationJob(app_files(), _overrides(config, directory), config.clients, workers, log)
    return _watched(partial(simulate, job), config, directory, f"sofed run resume={directory.path}")


def run_fleet(overrides: Sequence[str], site: Path) -> Result:
    """Begin a run on the fleet of this site, or continue the one that `site/run` (or `out=`) holds."""
    config = fleet_config(overrides, site)
    directory = RunDirectory(config.directory)
    check_server(config)
    log = directory.path / LOG
    job = FleetJob(app_files(), _overrides(config, directory), site, directory.path, log)
    return _watched(partial(train_on_fleet, job), config, directory, "the same command")


def fleet_config(overrides: Sequence[str], site: Path) -> RunConfig:
    """The run that these overrides begin or continue on a fleet; a finished one is refused."""
    flower_home(site)
    own = [text for text in overrides if not text.startswith("out=")]
    place = [text for text in overrides if text not in own] or [f"out={quoted(str(site / 'run'))}"]
    config = compose([*own, *place])
    held = RunDirectory(config.directory)
    if held.summary.exists():
        raise ConfigError(f"out={config.out}: holds a finished run; choose another out")
    if held.config.exists():
        config = compose([*own, f"resume={quoted(str(held.path))}"])
    return config


def _watched(work: Callable[[Tick], None], config: RunConfig, directory: RunDirectory, again: str) -> Result:
    directory.path.mkdir(parents=True, exist_ok=True)
    before = _written(directory.summary)
    how = f"continue from the last committed round with: {again}"
    with RunProgress(directory.log.path, config.rounds) as progress:
        try:
            work(progress.update)
        except KeyboardInterrupt as signal:
            raise InterruptedRunError(f"interrupted; {how if directory.config.exists() else NOTHING}") from signal
        except RunFailed as error:
            if _written(directory.summary) == before or not is_complete(directory, config.rounds):
                raise RunFailed(f"{error}; {how}" if directory.config.exists() else str(error)) from error
            with (directory.path / LOG).open("a") as file:
                file.write(f"Flower reports a failure ({error}), but all rounds are committed: the run counts.\n")
    if (summary := directory.result(config.rounds)) is None:
        lost = ", ".join(directory.missing()) or f"{directory.summary.name} of {config.rounds} rounds"
        raise RunFailed(f"the run ended without a result: {directory.path} lacks {lost}; see {directory.path / LOG}")
    return directory, summary


def is_complete(directory: RunDirectory, rounds: int) -> bool:
    """Whether all rounds are committed and the result is whole.

    Flower marks a run as failed if the machine was suspended for a minute, even after the run's end.
    """
    try:
        read_file(directory.encoder)
    except (OSError, DamagedFileError):
        return False
    committed = directory.checkpoints.newest()
    return directory.result(rounds) is not None and committed is not None and committed.number == rounds


def _written(file: Path) -> tuple[int, int] | None:
    """Identifies one version of a file."""
    return (file.stat().st_mtime_ns, file.stat().st_ino) if file.exists() else None


def _overrides(config: RunConfig, directory: RunDirectory) -> str:
    """For a ServerApp that may work in another directory: places are absolute."""
    place = f"resume={quoted(str(directory.path))}" if config.resume else f"out={quoted(str(directory.path))}"
    own = [text for text in config.overrides if text.partition("=")[0] not in ("out", "resume", "pretrained")]
    weights = [f"pretrained={quoted(config.pretrained)}"] if config.pretrained else []
    return shlex.join([*own, *weights, place])
