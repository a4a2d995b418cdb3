"""A table as a picture: ours and the paper's in one panel per column, then learning curves and score trends."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from sofed_flwr.charts import COLOURS, Dots, Lines, Panel, Range, figure
from sofed_flwr.reproduce.grid import Table
from sofed_flwr.reproduce.runs import Outcome
from sofed_flwr.runlog import read_rows

UNITS = {"linear": "accuracy (%)", "rescoring": "buffer rescored (%)", "discard": "new images discarded (%)"}


def draw(table: Table, results: Mapping[str, Any], outcomes: Sequence[Outcome]) -> str:
    """SVG text."""
    panels = [*_columns(table, results), *_curves(table, outcomes), *_traces(table, outcomes)]
    return figure(table.title, panels)


def _columns(table: Table, results: Mapping[str, Any]) -> Iterator[Panel]:
    for column in table.columns:
        mine = [cell for cell in results["cells"] if cell["column"] == column.name]
        if not any(cell["ours"] for cell in mine):
            continue
        unit = UNITS.get(column.value.split("_")[0], "relative batch time (%)")
        yield Dots(
            [cell["row"] for cell in mine],
            [cell["ours"] for cell in mine],
            [cell["paper"] for cell in mine],
            title=column.name,
            x_label=unit,
            names=(f"ours, scale {results['scale']}, a dot per seed (lower axis)", "paper (upper axis)"),
        )


def _curves(table: Table, outcomes: Sequence[Outcome]) -> Iterator[Panel]:
    """One panel per value and setting; a row's curve is the mean over its seeds."""
    for columns in dict.fromkeys(outcome.cell.columns for outcome in outcomes):
        for value in table.curves:
            mine = [outcome for outcome in outcomes if outcome.cell.columns == columns]
            setting = f"{columns[0].partition(',')[0]}, " if len(table.columns) > len(columns) else ""
            yield Lines(
                {row.name: _mean_curve([o for o in mine if o.cell.row == row.name], value) for row in table.rows},
                title=f"{setting}{_spoken(value)}",
                x_label="round",
                y_label=UNITS["linear"] if value.startswith("linear") else UNITS["discard"],
            )


def _spoken(value: str) -> str:
    return f"{float(value.removeprefix('linear_')):.0%} labels" if value.startswith("linear_") else UNITS["discard"]


def _mean_curve(outcomes: Sequence[Outcome], value: str) -> tuple[list[float], list[float]]:
    by_round: dict[int, list[float]] = defaultdict(list)
    for outcome in outcomes:
        for row in read_rows(outcome.directory.log.path):
            if row["name"] == value and "device" not in row and row["value"] is not None:
                by_round[row["round"]].append(row["value"] * (100 if value.endswith("ratio") else 1))
    rounds = sorted(by_round)
    return [float(number) for number in rounds], [mean(by_round[number]) for number in rounds]


def _traces(table: Table, outcomes: Sequence[Outcome]) -> Iterator[Panel]:
    files = [file for o in outcomes for file in sorted(o.directory.path.glob("devices/*/scores_round_*.json"))]
    for file in files if table.trace else []:
        trace = json.loads(file.read_text())
        longest = list(trace["samples"].items())[: len(COLOURS) - 1]
        yield Range(
            trace["seen"],
            trace["min"],
            trace["mean"],
            trace["max"],
            {f"i-{name}": scores for name, scores in longest},
            title=f"device {trace['device']}, round {trace['round']}, T = {trace['interval']}",
            x_label="inputs seen in this round",
            y_label="importance score",
        )
