"""A table as a picture: ours and the paper's in one panel per column, then learning curves and score trends."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from sofed_flwr.analysis.charts.panels import Curve, Dots, Lines, Panel, score_trend
from sofed_flwr.analysis.charts.svg import figure
from sofed_flwr.analysis.reproduce.grid import Table
from sofed_flwr.analysis.reproduce.records import RunRecord

UNITS = {
    "linear": "accuracy (%)",
    "knn": "accuracy (%)",
    "rescoring": "buffer rescored (%)",
    "discard": "new images discarded (%)",
}


def draw(table: Table, results: Mapping[str, Any], runs: Sequence[RunRecord]) -> str:
    """SVG text."""
    panels = [*_columns(table, results), *curves(table, runs, results["batch_seconds"])]
    return figure(table.title, [*panels, *(score_trend(trace) for run in runs for trace in run.traces)])


def _columns(table: Table, results: Mapping[str, Any]) -> Iterator[Panel]:
    for column in table.columns:
        mine = [cell for cell in results["cells"] if cell["column"] == column.name]
        if not any(cell["ours"] for cell in mine):
            continue
        unit = _unit(column.value)
        yield Dots(
            [cell["row"] for cell in mine],
            [cell["ours"] for cell in mine],
            [cell["paper"] for cell in mine],
            title=column.name,
            x_label=unit,
            names=(f"ours, scale {results['scale']}, a dot per seed (lower axis)", "paper (upper axis)"),
        )


def curves(table: Table, runs: Sequence[RunRecord], batch_seconds: Mapping[str, float]) -> Iterator[Panel]:
    """One panel per value and setting; a row's curve is the mean over its seeds."""
    finished = [run for run in runs if run.finished]
    for columns in dict.fromkeys(tuple(run.columns) for run in finished):
        for value in table.curves:
            mine = [run for run in finished if tuple(run.columns) == columns]
            setting = f"{columns[0].partition(',')[0]}, " if len(table.columns) > len(columns) else ""
            by_row = {row.name: [run for run in mine if run.row == row.name] for row in table.rows}
            series = {name: _mean_curve(its_runs, value) for name, its_runs in by_row.items()}
            if table.over == "seconds":
                series = {name: _timed(curve, by_row[name], batch_seconds.get(name)) for name, curve in series.items()}
            yield Lines(
                series,
                title=f"{setting}{_spoken(value)}",
                x_label="round" if table.over == "round" else "seconds of one device",
                y_label=_unit(value),
            )


def _unit(value: str) -> str:
    return UNITS.get(value.split("_")[0], "relative batch time (%)")


def _spoken(value: str) -> str:
    if value.startswith("linear_"):
        return f"{float(value.removeprefix('linear_')):.0%} labels"
    return "kNN" if value == "knn" else UNITS["discard"]


def _mean_curve(runs: Sequence[RunRecord], value: str) -> Curve:
    by_round: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        for number, measured in zip(*run.curves.get(value, ((), ())), strict=True):
            by_round[number].append(measured)
    return {number: mean(measured) for number, measured in by_round.items()}


def _timed(curve: Curve, runs: Sequence[RunRecord], batch_seconds: float | None) -> Curve:
    """Rounds become seconds, at the batch time that was measured for all rows in turn; empty until it is."""
    steps = [run.steps_per_round for run in runs if run.steps_per_round is not None]
    if batch_seconds is None or not steps:
        return {}
    return {number * mean(steps) * batch_seconds: value for number, value in curve.items()}
