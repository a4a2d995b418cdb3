"""What a person sees: progress while a run goes on, a table when it is over."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as SecondsLeft
from rich.table import Table

from sofed_flwr.runlog import Row

console = Console()


class Tail:
    """New complete lines of a growing file, each once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def rows(self) -> list[Row]:
        """Rows appended since the last call; a file that became shorter was rewound and is read from its start."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            if file.seek(0, 2) < self._offset:
                self._offset = 0
            file.seek(self._offset)
            complete, _, _ = file.read().rpartition(b"\n")
        self._offset += len(complete) + bool(complete)
        return [json.loads(line) for line in complete.splitlines()]


class RunProgress:
    """A progress bar over rounds, fed by `metrics.jsonl`; dropped devices and alarms are reported as they happen."""

    def __init__(self, log: Path, rounds: int) -> None:
        self._tail = Tail(log)
        self._latest: dict[str, float] = {}
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            SecondsLeft(),
            console=console,
        )
        self._task = self._bar.add_task("starting Flower", total=rounds)

    def __enter__(self) -> "RunProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.update()
        self._bar.stop()

    def update(self) -> None:
        """Show what was logged since the last call."""
        for row in self._tail.rows():
            if row["name"] == "dropped":
                self._bar.print(f"[yellow]round {row['round']}: device {row['device']} dropped:[/] {row['reason']}")
            elif row["name"] == "collapsed":
                self._bar.print(f"[red]round {row['round']}: the encoder has collapsed:[/] {row['reason']}")
            elif "device" not in row and row["value"] is not None:
                self._latest[row["name"]] = row["value"]
                if row["name"] == "seconds":
                    self._bar.update(self._task, completed=row["round"], description=self._description())

    def _description(self) -> str:
        shown = [("loss", "loss", "{:.3f}"), ("knn", "kNN", "{:.1f} %")]
        parts = [f"{label} {form.format(self._latest[key])}" for key, label, form in shown if key in self._latest]
        return "round  " + "  ".join(parts)


def accuracies(values: Mapping[str, Any]) -> dict[str, float]:
    """Heading -> percent, of what was measured: kNN, then the linear probe at each label fraction."""
    linear = {f"linear, {float(fraction):.0%} labels": value for fraction, value in values["linear"].items()}
    return {"kNN": values["knn"], **linear} if values["knn"] is not None else linear


def result_table(summary: Mapping[str, Any]) -> Table:
    """Untrained against trained encoder; what unlabeled images leave to say is no accuracy.

    The dataset is what the encoder was evaluated on: devices may have seen other images.
    """
    trained = accuracies(summary)
    names = ("encoder", "method", "policy", "clients", "rounds", "seed")
    title = " ".join(f"{key}={summary[key]}" for key in (("dataset", *names) if trained else names))
    if not trained:
        values = {name: summary[name] for name in ("loss", "feature_std") if summary[name] is not None}
        return comparison_table(title, [("trained without labels", values)])
    table = Table(title=title)
    for heading in ["accuracy (%)", *trained]:
        table.add_column(heading, justify="right")
    for name, row in (("untrained", accuracies(summary["untrained"])), ("trained", trained)):
        table.add_row(name, *(f"{value:.1f}" for value in row.values()))
    return table


def comparison_table(title: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> Table:
    """One row of named values per label."""
    table = Table(title=title)
    names = list(dict.fromkeys(name for _, values in rows for name in values))
    for heading in ["", *names]:
        table.add_column(heading, justify="right")
    for label, values in rows:
        table.add_row(label, *(f"{values[name]:.2f}" if name in values else "" for name in names))
    return table


def findings_table(title: str, rows: Iterable[tuple[str, str, str, str]]) -> Table:
    """Checks of `sofed doctor`: name, verdict, what was seen, what to do."""
    colours = {"ok": "green", "warn": "yellow", "fail": "red", "unknown": "dim"}
    table = Table("check", "", "seen", "what to do", title=title)
    for name, verdict, seen, remedy in rows:
        table.add_row(name, f"[{colours[verdict]}]{verdict}[/]", escape(seen), escape(remedy))
    return table
