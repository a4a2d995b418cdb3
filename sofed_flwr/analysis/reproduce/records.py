"""What is kept of a cell's run: everything its table and plot show, so that neither needs the run's directory again.

So a later order never loses results: a finished cell stays in the table until the same cell is finished again. Result
files and summaries are untrusted; they are read as data of known types.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from sofed_flwr.analysis.reproduce.grid import Cell, Key, Table
from sofed_flwr.analysis.trace_file import TraceFile, find_traces, read_trace
from sofed_flwr.core.errors import DamagedFileError
from sofed_flwr.storage.metrics_log import read_rows
from sofed_flwr.storage.plain_files import LARGEST_RECORD, read_plain_file
from sofed_flwr.storage.run_directory import RunDirectory
from sofed_flwr.storage.summary_file import Accuracies, Number, Summary, read_summary

log = logging.getLogger(__name__)


class RunRecord(BaseModel):
    """A cell's run: its settings, and its values by column, untrained and at the end."""

    row: str
    columns: list[str]
    seed: Annotated[int, Field(ge=0, le=9999)]
    overrides: list[str]
    directory: str
    seconds: Number | None = None
    failure: str | None = None
    values: dict[str, Number] = {}
    untrained: dict[str, Number] = {}
    steps_per_round: Number | None = None
    curves: dict[str, tuple[list[int], list[Number]]] = {}
    traces: list[TraceFile] = []

    @model_validator(mode="after")
    def _points(self) -> RunRecord:
        if any(len(rounds) != len(values) for rounds, values in self.curves.values()):
            raise ValueError("a curve has as many values as rounds")
        return self

    @property
    def finished(self) -> bool:
        """Whether there are results; a later attempt may still have failed."""
        return self.seconds is not None

    @property
    def key(self) -> Key:
        """Which cell of the table this is."""
        return self.row, tuple(self.columns), self.seed


class Earlier(BaseModel):
    """The content of a result file that a later order keeps."""

    runs: list[RunRecord] = []
    machines: list[str] = []
    batch_seconds: dict[str, Annotated[float, Field(gt=0, le=1e12)]] = {}


def read_earlier(file: Path) -> Earlier:
    """The results of earlier orders; a damaged file is not written over."""
    if not file.exists():
        return Earlier()
    try:
        return Earlier.model_validate_json(read_plain_file(file, LARGEST_RECORD))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        remedy = "repair it, move it away, or choose another --results"
        raise DamagedFileError(f"{file} is damaged ({place} {first['msg']}); {remedy}") from error


def record(cell: Cell, directory: RunDirectory, table: Table, failure: str | None = None) -> RunRecord:
    """Read everything that a table shows from a run's directory."""
    summary = None if failure else read_summary(directory.summary)
    ours: dict[str, Any] = {}
    if summary:
        read_off = {column.name: column.value for column in table.columns if column.name in cell.columns}
        ours = {
            "seconds": summary.seconds,
            "values": _by_column(read_off, summary),
            "untrained": _by_column(read_off, summary.untrained),
            "steps_per_round": _steps_per_round(directory) if table.over == "seconds" else None,
            "curves": {name: _curve(directory, name) for name in table.curves},
            "traces": [read_trace(file) for file in find_traces(directory.path).values()] if table.trace else [],
        }
    about = {"row": cell.row, "columns": list(cell.columns), "seed": cell.seed, "overrides": list(cell.overrides)}
    return RunRecord(**about, directory=directory.path.name, failure=failure, **ours)


def merged(earlier: Sequence[RunRecord], now: Sequence[RunRecord], grid: Sequence[Cell]) -> list[RunRecord]:
    """In the order of the grid: a finished run is only replaced by a finished run of the same settings."""
    settings = {cell.key: _settings(cell.overrides) for cell in grid}
    kept = {run.key: run for run in earlier if run.finished and settings.get(run.key) == _settings(run.overrides)}
    for run in now:
        before = kept.get(run.key)
        kept[run.key] = run if run.finished or not before else before.model_copy(update={"failure": run.failure})
    return [kept[key] for key in settings if key in kept]


def _by_column(names: Mapping[str, str], found: Accuracies) -> dict[str, float]:
    """Each column's value, by the name that `paper.yaml` has for it; ratios in percent."""
    known = {"knn": found.knn, **{f"linear_{share}": value for share, value in found.linear.items()}}
    if isinstance(found, Summary):
        ratios = {"rescoring": found.rescoring_ratio, "discard": found.discard_ratio}
        known |= {name: 100 * ratio for name, ratio in ratios.items() if ratio is not None}
    return {column: value for column, name in names.items() if (value := known.get(name)) is not None}


def _settings(overrides: Sequence[str]) -> set[str]:
    """Without the source of the images: a file may replace a download (`--data`)."""
    return {override for override in overrides if override.partition("=")[0] not in ("dataset", "dataset.path")}


def _curve(directory: RunDirectory, name: str) -> tuple[list[int], list[float]]:
    scale = 100 if name.endswith("ratio") else 1
    rows = [row for row in read_rows(directory.log.path) if row["name"] == name and "device" not in row]
    values = {row["round"]: scale * row["value"] for row in rows if row["value"] is not None}
    return sorted(values), [values[number] for number in sorted(values)]


def _steps_per_round(directory: RunDirectory) -> float | None:
    """Of one device, on average; None if nothing was logged."""
    steps = [row["value"] for row in read_rows(directory.log.path) if row["name"] == "steps" and row["value"]]
    return mean(steps) if steps else None
