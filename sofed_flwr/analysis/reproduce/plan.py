"""What an order would run, where, and how long it would take, without running it.

A run's directory is named after everything that decides its result, so tables share the runs they have in common
(SOFed's row of Table 1 is a row of Tables 3, 5 and 6), and a changed setting is another run.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from sofed_flwr.analysis.reproduce.grid import Cell, cells, tables
from sofed_flwr.analysis.reproduce.order import Order
from sofed_flwr.analysis.reproduce.records import read_earlier
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.models.accelerator import torch_device
from sofed_flwr.storage.run_directory import RunDirectory
from sofed_flwr.storage.summary_file import read_summary

START = 20.0
"""Seconds in which Flower starts and stops, and the untrained encoder is evaluated."""
ROUND = {"smoke": 2.0, "long": 9.0, "small": 25.0}
"""Seconds of a round on two cores; `small`: results/, 21 to 29 on average."""
PAPER_ROUND = {"cuda": 40.0, "cpu": 3300.0}
"""Calculated, not measured: 50,000 images of 6.7 GFLOP (12 passes through ResNet-18) at 8 TFLOP/s and 100 GFLOP/s."""


@dataclass(frozen=True)
class Planned:
    """A cell: the seconds its finished run took, or None and the seconds a run is expected to take."""

    cell: Cell
    took: float | None
    begun: bool
    expected: float

    def __str__(self) -> str:
        state = "begun" if self.begun else "to run"
        return f"{'done' if self.took is not None else state:7}{in_words(self.took or self.expected):>12}  {self.cell}"


@dataclass(frozen=True)
class Plan:
    """All cells of an order, and the number of finished runs on which the estimate is based."""

    cells: list[Planned]
    known: int

    def __str__(self) -> str:
        missing = [planned for planned in self.cells if planned.took is None]
        done = f"{len(self.cells)} cells, {len(self.cells) - len(missing)} done"
        if not missing:
            return done
        basis = f"as {self.known} finished runs took" if self.known else "by a stated rate, no run is finished yet"
        left = sum(planned.expected for planned in missing)
        return f"{done}, {len(missing)} to run: about {in_words(left)} ({basis})"


def plan(wanted: Order, results: Path, runs: Path) -> Plan:
    """Find what is finished; nothing is run or written."""
    known = {run.key: run.seconds for run in read_earlier(results / f"{wanted.stem}.json").runs if run.seconds}
    found = [(cell, place(cell.config, runs)) for cell in wanted.cells]
    took = {cell.key: summary.seconds for cell, home in found if (summary := read_summary(home.summary))}
    known |= took
    expected = mean(known.values()) if known else None
    return Plan(
        [
            Planned(cell, took.get(cell.key), home.config.exists(), expected or _stated(cell.config, wanted.scale))
            for cell, home in found
        ],
        len(known),
    )


def place(config: RunConfig, runs: Path) -> RunDirectory:
    """Directory of a cell's run, which may not exist yet."""
    parts = [config.choices[group] for group in ("method", "policy", "dataset")]
    return RunDirectory(runs.resolve() / "-".join([*parts, f"seed{config.seed}", _fingerprint(config)]))


def _fingerprint(config: RunConfig) -> str:
    """Of what decides the result. A key that came later has a default in the schema, and counts once it is used."""
    fields = RunConfig.model_fields.items()
    unused = {name for name, field in fields if not field.is_required() and getattr(config, name) == field.default}
    content = config.model_dump(exclude=RunConfig.no_effect_on_result() | unused)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def _stated(config: RunConfig, scale: str) -> float:
    each = ROUND[scale] if scale in ROUND else PAPER_ROUND[torch_device(config).type]
    return START + config.rounds * each


def listing() -> Iterator[str]:
    """Every table by name, with the number of its cells for one seed, and its title."""
    for name, table in tables().items():
        yield f"{name:22}{len(list(cells(table, 'paper', 1, {}, []))):3} cells  {table.title}"


def in_words(seconds: float) -> str:
    """Two units at most."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
