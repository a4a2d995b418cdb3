"""`sofed run`: one simulation, checked before anything starts, watched, and judged by what it left behind."""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sofed_flwr.assembly import check, torch_device
from sofed_flwr.config import compose
from sofed_flwr.display import RunProgress
from sofed_flwr.launcher import SimulationFailed, SimulationJob, simulate
from sofed_flwr.run_config import RunConfig
from sofed_flwr.run_directory import RunDirectory

APP = Path(__file__).resolve().parent.parent
"""The Flower app: the directory of pyproject.toml, client_app.py and server_app.py."""


class InterruptedRunError(RuntimeError):
    """The user stopped the run; the message says how to go on."""


def run_simulation(overrides: Sequence[str]) -> tuple[RunDirectory, dict[str, Any]]:
    """Run to the end; the run's directory and its summary."""
    config = compose(overrides)
    check(config)
    directory = RunDirectory(config.directory)
    directory.path.mkdir(parents=True, exist_ok=True)
    directory.summary.unlink(missing_ok=True)
    with RunProgress(directory.log.path, config.rounds) as progress:
        try:
            simulate(_job(config, directory), progress.update)
        except KeyboardInterrupt as signal:
            started = directory.config.exists()
            how = f"continue with: sofed run resume={directory.path}" if started else "no round was committed"
            raise InterruptedRunError(f"interrupted; {how}") from signal
    if not directory.summary.exists():
        raise SimulationFailed(f"the run ended without a result; see {directory.path / 'flower.log'}")
    return directory, json.loads(directory.summary.read_text())


def _job(config: RunConfig, directory: RunDirectory) -> SimulationJob:
    place = f"resume={_quoted(directory.path)}" if config.resume else f"out={_quoted(directory.path)}"
    own = [text for text in config.overrides if text.partition("=")[0] not in ("out", "resume")]
    return SimulationJob(
        app=APP,
        overrides=shlex.join([*own, place]),
        nodes=config.clients,
        workers=min(config.workers or len(os.sched_getaffinity(0)), config.clients),
        gpus=torch.cuda.device_count() if torch_device(config).type == "cuda" else 0,
        log=directory.path / "flower.log",
    )


def _quoted(path: Path) -> str:
    """A path as a quoted string of Hydra's grammar, in which a bare one must not hold spaces or brackets."""
    return "'" + str(path).replace("\\", "\\\\").replace("'", "\\'") + "'"
