"""What came out of a grid, beside what the paper printed: plain data, JSON and markdown."""

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from statistics import mean, stdev
from typing import Any

from sofed_flwr.reproduce.grid import Column, Line, Table
from sofed_flwr.reproduce.runs import Outcome

Results = dict[str, Any]


def collect(
    table: Table, outcomes: Sequence[Outcome], batch_seconds: Mapping[str, float], facts: Mapping[str, Any]
) -> Results:
    """One entry per cell with ours (a value per seed) and the paper's; one per run with its command and seconds."""
    return {
        "table": table.name,
        "title": table.title,
        **facts,
        "machine": machine(),
        "cells": [
            _cell(row, column, paper, outcomes, _relative(batch_seconds, table))
            for row in table.rows
            for column, paper in zip(table.columns, row.paper, strict=True)
        ],
        "untrained": _untrained(table, outcomes),
        "batch_seconds": dict(batch_seconds),
        "runs": [_run(outcome) for outcome in outcomes],
    }


def markdown(results: Results, table: Table) -> str:
    """The table as people read it, and how to get every row of it again."""
    by_place = {(cell["row"], cell["column"]): cell for cell in results["cells"]}
    names = [column.name for column in table.columns]
    body = [[row.name, *(_text(by_place[row.name, name]) for name in names)] for row in table.rows]
    untrained = [_one(results["untrained"].get(name)) for name in names]
    runs = [[run["row"], str(run["seed"]), _one(run["seconds"]), _command(run)] for run in results["runs"]]
    done = [run["seconds"] for run in results["runs"] if run["seconds"]]
    return "\n".join(
        [
            f"# {table.title}",
            "",
            f"Ours at scale `{results['scale']}` (mean ± standard deviation over {results['seeds']} seeds), "
            "the paper's in brackets.",
            "",
            *_rows(["", *names], [*body, ["untrained encoder", *untrained]]),
            "",
            f"![plot]({table.name}_{results['scale']}.svg)",
            "",
            f"`{results['command']}`: {len(done)} runs, {sum(done):.0f} s in all; {results['machine']}.",
            "",
            *_rows(["run", "seed", "seconds", "command"], runs),
            "",
        ]
    )


def machine() -> str:
    """Where the figures come from."""
    cores = len(os.sched_getaffinity(0))
    versions = ", ".join(f"{name} {version(name)}" for name in ("flwr", "torch"))
    return f"{cores} cores {platform.machine()}, Python {platform.python_version()}, {versions}"


def read_value(name: str, summary: Mapping[str, Any]) -> float | None:
    """One value of a run by the name `paper.yaml` has for it; ratios in percent."""
    if name.startswith("linear_"):
        value: float | None = summary["linear"].get(name.removeprefix("linear_"))
        return value
    ratio = summary.get({"rescoring": "rescoring_ratio", "discard": "discard_ratio"}.get(name, name))
    return None if ratio is None else 100 * float(ratio)


def _cell(
    row: Line, column: Column, paper: float | None, outcomes: Sequence[Outcome], batch_time: Mapping[str, float]
) -> dict[str, Any]:
    if column.value == "batch_time":
        ours = [batch_time[row.name]] if row.name in batch_time else []
    else:
        mine = [o for o in outcomes if o.cell.row == row.name and column.name in o.cell.columns]
        values = [read_value(column.value, o.summary) for o in mine if o.summary]
        ours = [value for value in values if value is not None]
    return {"row": row.name, "column": column.name, "value": column.value, "ours": ours, "paper": paper}


def _relative(batch_seconds: Mapping[str, float], table: Table) -> dict[str, float]:
    first = batch_seconds.get(table.rows[0].name)
    return {row: 100 * seconds / first for row, seconds in batch_seconds.items()} if first else {}


def _untrained(table: Table, outcomes: Sequence[Outcome]) -> dict[str, float]:
    """By column, the mean over its runs: every one begins with an evaluation of its untrained encoder."""
    found = {}
    for column in table.columns:
        mine = [o.summary for o in outcomes if o.summary and column.name in o.cell.columns]
        values = [read_value(column.value, s["untrained"]) for s in mine if column.value.startswith("linear_")]
        found[column.name] = [value for value in values if value is not None]
    return {name: mean(values) for name, values in found.items() if values}


def _run(outcome: Outcome) -> dict[str, Any]:
    summary = outcome.summary or {}
    return {
        "row": outcome.cell.row,
        "columns": list(outcome.cell.columns),
        "seed": outcome.cell.seed,
        "overrides": list(outcome.cell.overrides),
        "directory": outcome.directory.path.name,
        "seconds": summary.get("seconds"),
        "failure": outcome.failure,
    }


def _command(run: Mapping[str, Any]) -> str:
    return run["failure"] or f"`sofed run {' '.join(run['overrides'])}`"


def _text(cell: Mapping[str, Any]) -> str:
    ours: list[float] = cell["ours"]
    spread = f" ± {stdev(ours):.1f}" if len(ours) > 1 else ""
    ours_text = f"{mean(ours):.1f}{spread}" if ours else "not run"
    return ours_text if cell["paper"] is None else f"{ours_text} ({cell['paper']:g})"


def _one(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _rows(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *body]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
