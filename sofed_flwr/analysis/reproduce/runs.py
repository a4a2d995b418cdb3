"""A grid of runs that can be stopped and started again: finished cells are skipped, an unfinished one is resumed.

A run's directory is named after everything that decides its result, so tables share the runs they have in common
(SOFed's row of Table 1 is a row of Tables 3, 5 and 6), and a changed setting is another run.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sofed_flwr.analysis.reproduce.grid import Cell
from sofed_flwr.config.override_text import quoted
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError, InterruptedRunError, RunFailed
from sofed_flwr.core.redaction import one_line
from sofed_flwr.storage.run_directory import RunDirectory

Simulate = Callable[[Sequence[str]], Any]


def place(config: RunConfig, runs: Path) -> RunDirectory:
    """Directory of a cell's run, which may not exist yet."""
    parts = [config.choices[group] for group in ("method", "policy", "dataset")]
    return RunDirectory(runs.resolve() / "-".join([*parts, f"seed{config.seed}", _fingerprint(config)]))


def perform(cell: Cell, directory: RunDirectory, simulate: Simulate) -> str | None:
    """Run a cell, from its last committed round if there is one; a failure is returned as text."""
    where = f"{'resume' if directory.config.exists() else 'out'}={quoted(str(directory.path))}"
    try:
        simulate([*cell.overrides, where])
    except (ConfigError, RunFailed) as error:
        return one_line(str(error))
    except InterruptedRunError as error:
        raise InterruptedRunError("interrupted; the same command continues where it stopped") from error
    return None


def _fingerprint(config: RunConfig) -> str:
    """Of what decides the result. A key that came later has a default in the schema, and counts once it is used."""
    fields = RunConfig.model_fields.items()
    unused = {name for name, field in fields if not field.is_required() and getattr(config, name) == field.default}
    content = config.model_dump(exclude=RunConfig.no_effect_on_result() | unused)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
