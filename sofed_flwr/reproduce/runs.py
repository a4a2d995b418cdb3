"""A grid of runs that can be stopped and started again: finished cells are skipped, an unfinished one is resumed.

A run's directory is named after everything that decides its result, so tables share the runs they have in common
(SOFed's row of Table 1 is a row of Tables 3, 5 and 6), and a changed setting is another run.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sofed_flwr.component import ConfigError
from sofed_flwr.config import compose
from sofed_flwr.flower_commands import RunFailed
from sofed_flwr.reproduce.grid import Cell
from sofed_flwr.run_config import RunConfig
from sofed_flwr.run_directory import RunDirectory
from sofed_flwr.running import InterruptedRunError

NOT_DECISIVE = {"out", "resume", "force", "workers", "overrides", "choices", "tracking", "device"}
"""Keys that do not change what a run computes."""

Simulate = Callable[[Sequence[str]], Any]


@dataclass(frozen=True)
class Outcome:
    """A cell after its turn: a run with a summary, or the reason why there is none."""

    cell: Cell
    directory: RunDirectory
    failure: str | None = None

    @property
    def summary(self) -> dict[str, Any] | None:
        """The run in numbers."""
        if not self.directory.summary.exists():
            return None
        content: dict[str, Any] = json.loads(self.directory.summary.read_text())
        return content


def place(cell: Cell, runs: Path) -> RunDirectory:
    """Where a cell's run is, done, begun or not."""
    config = compose(cell.overrides)
    parts = [config.choices[group] for group in ("method", "policy", "dataset")]
    return RunDirectory(runs.resolve() / "-".join([*parts, f"seed{config.seed}", _fingerprint(config)]))


def perform(cell: Cell, directory: RunDirectory, simulate: Simulate) -> Outcome:
    """Run a cell, from its last committed round if there is one; a failure is this cell's alone."""
    where = f"resume='{directory.path}'" if directory.config.exists() else f"out='{directory.path}'"
    try:
        simulate([*cell.overrides, where])
    except (ConfigError, RunFailed) as error:
        return Outcome(cell, directory, failure=str(error))
    except InterruptedRunError as error:
        raise InterruptedRunError("interrupted; the same command continues where it stopped") from error
    return Outcome(cell, directory)


def _fingerprint(config: RunConfig) -> str:
    content = config.model_dump(exclude=NOT_DECISIVE)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
