"""Results of a grid beside the paper's: plain data, JSON and markdown.

Two rows of one seed share data order, initial weights and label subsets, so their difference varies less than either:
differences to one row are paired by seed. It is the first of those that have the most seeds, which gives the others an
interval where they can have one.
"""

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from math import sqrt
from statistics import mean, stdev
from typing import Any
from urllib.parse import quote

from sofed_flwr.analysis.reproduce.grid import Column, Table
from sofed_flwr.analysis.reproduce.records import RunRecord
from sofed_flwr.core.markdown import markdown_table

Results = dict[str, Any]

STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Quantiles at 97.5 % for 1 to 9 degrees of freedom; beyond, the last one errs on the safe side."""


def collect(
    table: Table, runs: Sequence[RunRecord], batch_seconds: Mapping[str, float], facts: Mapping[str, Any]
) -> Results:
    """One entry per cell with ours (a value per seed) and the paper's; one per run with everything kept of it."""
    seeds = {row.name: len({run.seed for run in runs if run.finished and run.row == row.name}) for row in table.rows}
    reference = max(seeds, key=lambda name: seeds[name])
    return {
        "table": table.name,
        "title": table.title,
        **facts,
        "seeds": len({run.seed for run in runs if run.finished}),
        "reference": reference,
        "cells": list(_cells(table, runs, reference, batch_seconds)),
        "untrained": _untrained(table, runs),
        "batch_seconds": dict(batch_seconds),
        "runs": [run.model_dump(mode="json") for run in runs],
    }


def markdown(results: Results, table: Table) -> str:
    """The table as markdown, with the command of every row."""
    names = [column.name for column in table.columns]
    untrained = [_one(results["untrained"].get(name)) for name in names]
    runs = [[run["row"], str(run["seed"]), _one(run["seconds"]), _command(run)] for run in results["runs"]]
    done = [run["seconds"] for run in results["runs"] if run["seconds"]]
    uneven = len({len(cell["ours"]) for cell in results["cells"] if cell["ours"]}) > 1
    several = f"mean ± standard deviation over {'up to ' if uneven else ''}{results['seeds']} seeds"
    seeds = several if results["seeds"] > 1 else "one seed"
    return "\n".join(
        [
            f"# {table.title}",
            "",
            f"Ours at scale `{results['scale']}` ({seeds}), the paper's in brackets.",
            "",
            _table(["", *names], *_rows(results, table, _text), ["untrained encoder", *untrained]),
            *_difference_table(results, table, names),
            f"![plot]({quote(results['stem'])}.svg)",
            "",
            f"`{results['command']}` makes the whole table and skips what is done.",
            "",
            f"{len(done)} runs, {sum(done):.0f} s in all; {'; '.join(results['machines'])}.",
            "",
            _table(["run", "seed", "seconds", "command"], *runs),
        ]
    )


def _difference_table(results: Results, table: Table, names: Sequence[str]) -> list[str]:
    """Rows less the reference, where seeds allow it."""
    first = results["reference"]
    others = [row for row in _rows(results, table, lambda cell: str(cell["difference"])) if row[0] != first]
    if not any(any(row[1:]) for row in others):
        return []
    words = f"Difference to {first}, paired by seed, with its 95 % interval where there are several seeds."
    return [words, "", _table(["", *names], *others)]


def _rows(results: Results, table: Table, text: Callable[[Mapping[str, Any]], str]) -> list[list[str]]:
    """Name of every row, then a text for each of its cells."""
    return [[row.name, *(text(cell) for cell in results["cells"] if cell["row"] == row.name)] for row in table.rows]


def machine() -> str:
    """Hardware and versions behind the figures."""
    cores = len(os.sched_getaffinity(0))
    versions = ", ".join(f"{name} {version(name)}" for name in ("flwr", "torch"))
    return f"{cores} cores {platform.machine()}, Python {platform.python_version()}, {versions}"


def _cells(
    table: Table, runs: Sequence[RunRecord], reference: str, batch_seconds: Mapping[str, float]
) -> Iterator[dict[str, Any]]:
    """Row by row, in the order of the columns; batch times in percent of the first row's."""
    first = batch_seconds.get(table.rows[0].name)
    for row in table.rows:
        timed = [100 * batch_seconds[row.name] / first] if first and row.name in batch_seconds else []
        for column, paper in zip(table.columns, row.printed(len(table.columns)), strict=True):
            ours, others = (_by_seed(name, column, runs) for name in (row.name, reference))
            yield {
                "row": row.name,
                "column": column.name,
                "value": column.value,
                "ours": timed if column.value == "batch_time" else list(ours.values()),
                "difference": paired_difference(ours, others),
                "paper": paper,
            }


def paired_difference(row: Mapping[int, float], first: Mapping[int, float]) -> str:
    """Mean over the seeds that both have, with its 95 % interval; one seed has none, no common one no difference."""
    differences = [row[seed] - first[seed] for seed in sorted(row.keys() & first.keys())]
    count = len(differences)
    if count < 2:
        return "".join(f"{difference:+.1f}" for difference in differences)
    margin = STUDENT_T[min(count - 1, len(STUDENT_T)) - 1] * stdev(differences) / sqrt(count)
    return f"{mean(differences):+.1f} ± {margin:.1f}"


def _by_seed(row: str, column: Column, runs: Sequence[RunRecord]) -> dict[int, float]:
    return {run.seed: run.values[column.name] for run in runs if run.row == row and column.name in run.values}


def _untrained(table: Table, runs: Sequence[RunRecord]) -> dict[str, float]:
    """By column, the mean over its runs: every one begins with an evaluation of its untrained encoder."""
    found = {
        column.name: [run.untrained[column.name] for run in runs if column.name in run.untrained]
        for column in table.columns
    }
    return {name: mean(values) for name, values in found.items() if values}


def _command(run: Mapping[str, Any]) -> str:
    return run["failure"] or f"`sofed run {' '.join(run['overrides'])}`"


def _text(cell: Mapping[str, Any]) -> str:
    ours: list[float] = cell["ours"]
    spread = f" ± {stdev(ours):.1f}" if len(ours) > 1 else ""
    ours_text = f"{mean(ours):.1f}{spread}" if ours else "not run"
    return ours_text if cell["paper"] is None else f"{ours_text} ({cell['paper']:g})"


def _one(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _table(*rows: Sequence[str]) -> str:
    return markdown_table([cell.replace("|", "\\|") for cell in row] for row in rows)
