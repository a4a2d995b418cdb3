"""The paper's tables as grids of runs: `paper.yaml` -> cells, each with the overrides of one `sofed run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from sofed_flwr.config.compose import compose
from sofed_flwr.config.override_text import merged, quoted
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.suggestion import did_you_mean

PAPER = Path(__file__).with_name("paper.yaml")
SCALES = {
    "paper": "days on a GPU box",
    "small": "about 15 minutes per cell",
    "long": "cheap steps, but 12,000 of them: about 10 minutes per cell",
    "smoke": "seconds per cell",
}
"""From large to small, and what to expect of them."""


Key = tuple[str, tuple[str, ...], int]
"""A cell of a table: row, columns, seed."""


class Record(BaseModel):
    """A part of `paper.yaml`; a misspelt key there is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Runs(Record):
    """A row or a column: `small` replaces `run` below paper scale, `long` and `smoke` what stands before them."""

    name: str
    run: str = ""
    small: str | None = None
    long: str | None = None
    smoke: str | None = None

    def overrides(self, scale: str) -> list[str]:
        """What it adds to the run: what its scale says, or else the next larger one."""
        written = {"paper": self.run, "small": self.small, "long": self.long, "smoke": self.smoke}
        names = list(SCALES)
        larger = names[names.index(scale) :: -1]
        return next(text for text in map(written.get, larger) if text is not None).split()


class Column(Runs):
    """One value of a run."""

    value: str


class Line(Runs):
    """One row, with what the paper printed in each column (None: nothing); without it, the table is not the paper's."""

    paper: list[float | None] = []

    def printed(self, count: int) -> list[float | None]:
        """One value for each of `count` columns."""
        return self.paper or [None] * count


class Table(Record):
    """A table or figure: `curves` are values drawn over rounds, or over a device's seconds as the batch times say.

    `trace` says that a device's scores are drawn.
    """

    name: str
    title: str
    columns: list[Column]
    rows: list[Line]
    curves: list[str] = []
    over: Literal["round", "seconds"] = "round"
    trace: bool = False

    @property
    def timed(self) -> bool:
        """Whether seconds per batch are measured, for all rows in turn."""
        return any(column.value == "batch_time" for column in self.columns)

    @model_validator(mode="after")
    def _complete(self) -> Table:
        if self.over == "seconds" and not self.timed:
            raise ValueError(f"{self.name}: curves over seconds need a column of batch times")
        for row in self.rows:
            count = len(self.columns)
            if len(row.printed(count)) != count:
                raise ValueError(f"{self.name}: row {row.name} has {len(row.paper)} values for {count} columns")
        return self


@dataclass(frozen=True)
class Cell:
    """One run of a grid; columns that only show different values of it share it."""

    row: str
    columns: tuple[str, ...]
    seed: int
    overrides: tuple[str, ...]

    @property
    def key(self) -> Key:
        """Unique within its table."""
        return self.row, self.columns, self.seed

    @property
    def name(self) -> str:
        """The full name, which `--only` searches."""
        return f"{self.row}; {', '.join(self.columns)}; seed {self.seed}"

    @cached_property
    def config(self) -> RunConfig:
        """Composed once: Hydra takes a tenth of a second, and a grid may have a hundred cells."""
        return compose(self.overrides)

    def __str__(self) -> str:
        more = f" (+ {len(self.columns) - 1})" if len(self.columns) > 1 else ""
        return f"{self.row}; {self.columns[0]}{more}; seed {self.seed}"


def tables() -> dict[str, Table]:
    """All of them, by name."""
    content: dict[str, Any] = yaml.safe_load(PAPER.read_text())
    return {name: Table.model_validate({"name": name, **table}) for name, table in content.items()}


def find_table(name: str) -> Table:
    """One of them; an unknown name is refused with the known ones."""
    known = tables()
    if name not in known:
        what = f"{name}: there is no such table or figure; choose one of {', '.join(known)}"
        raise ConfigError(what + did_you_mean(name, known))
    return known[name]


def cells(table: Table, scale: str, seeds: int, data: Mapping[str, str], more: Sequence[str]) -> Iterator[Cell]:
    """Every run of the table, seed by seed, so that a grid that is stopped early has whole seeds.

    `data` replaces datasets by .npz files, by name; `more` are the user's own overrides, which win.
    """
    common = [f"experiment={table.name}", *([] if scale == "paper" else [f"scale={scale}"])]
    for seed in range(seeds):
        for row in table.rows:
            runs: dict[tuple[str, ...], list[str]] = {}
            for column in table.columns:
                own = merged([*common, *row.overrides(scale), *column.overrides(scale), f"seed={seed}"], more)
                runs.setdefault(tuple(_from_files(own, scale, data)), []).append(column.name)
            for overrides, names in runs.items():
                yield Cell(row.name, tuple(names), seed, overrides)


def _from_files(overrides: list[str], scale: str, data: Mapping[str, str]) -> list[str]:
    """A smoke test uses generated images only; otherwise the user's file replaces a dataset's download.

    A stream by superclasses needs a file of its own, with `train_groups`: --data cifar100:superclass=FILE.npz.
    """
    if scale == "smoke":
        return [override for override in overrides if not override.startswith("dataset")]
    chosen = {key: value for key, _, value in (text.partition("=") for text in ["dataset=cifar10", *overrides])}
    name = ":".join(filter(None, [chosen["dataset"], chosen.get("dataset.stream_classes")]))
    if name not in data:
        return overrides
    rest = [override for override in overrides if not override.startswith(("dataset=", "dataset."))]
    return [*rest, "dataset=npz", f"dataset.path={quoted(data[name])}"]
