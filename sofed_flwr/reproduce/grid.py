"""The paper's tables as grids of runs: `paper.yaml` -> cells, each with the overrides of one `sofed run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from sofed_flwr.component import ConfigError

PAPER = Path(__file__).with_name("paper.yaml")
SCALES = ("paper", "small", "smoke")


class Record(BaseModel):
    """A part of `paper.yaml`; a misspelt key there is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Column(Record):
    """One value of a run; `small` replaces `run` below paper scale, `smoke` both where even that is too much."""

    name: str
    value: str
    run: str = ""
    small: str | None = None
    smoke: str | None = None

    def overrides(self, scale: str) -> list[str]:
        """What this column adds to the run: what its scale says, or else the next larger one."""
        written = {"paper": self.run, "small": self.small, "smoke": self.smoke}
        larger = SCALES[SCALES.index(scale) :: -1]
        return next(text for text in map(written.get, larger) if text is not None).split()


class Line(Record):
    """One row: what it runs, and what the paper printed in each column (None: nothing)."""

    name: str
    run: str = ""
    paper: list[float | None]


class Table(Record):
    """A table or figure: `curves` are values drawn over rounds, `trace` says that a device's scores are drawn."""

    name: str
    title: str
    columns: list[Column]
    rows: list[Line]
    curves: list[str] = []
    trace: bool = False

    @model_validator(mode="after")
    def _complete(self) -> Table:
        for row in self.rows:
            if len(row.paper) != len(self.columns):
                count = len(self.columns)
                raise ValueError(f"{self.name}: row {row.name} has {len(row.paper)} values for {count} columns")
        return self


@dataclass(frozen=True)
class Cell:
    """One run of a grid: columns that differ only in what they read off share it."""

    row: str
    columns: tuple[str, ...]
    seed: int
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """In full, as `--only` looks for it."""
        return f"{self.row}; {', '.join(self.columns)}; seed {self.seed}"

    def __str__(self) -> str:
        more = f" (+ {len(self.columns) - 1})" if len(self.columns) > 1 else ""
        return f"{self.row}; {self.columns[0]}{more}; seed {self.seed}"


def tables() -> dict[str, Table]:
    """All of them, by name."""
    content: dict[str, Any] = yaml.safe_load(PAPER.read_text())
    return {name: Table.model_validate({"name": name, **table}) for name, table in content.items()}


def find_table(name: str) -> Table:
    """One of them; a clear word about the others if there is none."""
    known = tables()
    if name not in known:
        raise ConfigError(f"{name}: there is no such table or figure; choose one of {', '.join(known)}")
    return known[name]


def cells(table: Table, scale: str, seeds: int, data: Mapping[str, str], more: list[str]) -> Iterator[Cell]:
    """Every run of the table, seed by seed, so that a grid that is stopped early has whole seeds.

    `data` replaces datasets by .npz files, by name; `more` are the user's own overrides, which win.
    """
    common = [f"experiment={table.name}", *([] if scale == "paper" else [f"scale={scale}"])]
    for seed in range(seeds):
        for row in table.rows:
            runs: dict[tuple[str, ...], list[str]] = {}
            for column in table.columns:
                own = _latest([*common, *row.run.split(), *column.overrides(scale), f"seed={seed}", *more])
                runs.setdefault(tuple(_from_files(own, scale, data)), []).append(column.name)
            for overrides, names in runs.items():
                yield Cell(row.name, tuple(names), seed, overrides)


def _latest(overrides: list[str]) -> list[str]:
    """The later override of a key replaces the earlier one."""
    return list({override.partition("=")[0]: override for override in overrides}.values())


def _from_files(overrides: list[str], scale: str, data: Mapping[str, str]) -> list[str]:
    """A smoke test knows only generated images; otherwise a dataset comes from its file, where the user has one."""
    if scale == "smoke":
        return [override for override in overrides if not override.startswith("dataset")]
    chosen = dict(override.split("=", 1) for override in overrides).get("dataset", "cifar10")
    if chosen not in data:
        return overrides
    rest = [override for override in overrides if override.partition("=")[0] != "dataset"]
    return [*rest, "dataset=npz", f"dataset.path='{data[chosen]}'"]
