"""Output on the terminal: progress during a run, tables after it.

Markup is off, since a path or untrusted text may look like it; colours are set with `Text`.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as SecondsLeft
from rich.table import Table
from rich.text import Text

from sofed_flwr.core.redaction import redacted
from sofed_flwr.storage.metrics_log import Row, parse_row

console = Console(markup=False, emoji=False)


class Tail:
    """New complete lines of a growing file, each once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def rows(self) -> list[Row]:
        """Rows appended since the last call; a file that became shorter is read from its start."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            if file.seek(0, 2) < self._offset:
                self._offset = 0
            file.seek(self._offset)
            complete, _, _ = file.read().rpartition(b"\n")
        self._offset += len(complete) + bool(complete)
        return [row for line in complete.split(b"\n") if (row := parse_row(line)) is not None]


class RunProgress:
    """A progress bar over rounds, fed by `metrics.jsonl`; dropped devices and alarms are reported as they happen.

    Within a round it moves with every reply.
    """

    def __init__(self, log: Path, rounds: int) -> None:
        self._tail = Tail(log)
        self._rounds = rounds
        self._latest: dict[str, float] = {}
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            SecondsLeft(),
            console=console,
            speed_estimate_period=float("inf"),  # a round may last an hour
        )
        self._task = self._bar.add_task("starting Flower", total=rounds)
        self._output: Any = None  # of a notebook's cell

    def __enter__(self) -> "RunProgress":
        if console.is_jupyter:
            from IPython.display import display  # rich's own bar needs ipywidgets there

            self._output = display(self._bar, display_id=True)
        else:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.update()
        self._bar.stop()

    def update(self) -> None:
        """Show what was logged since the last call."""
        for row in self._tail.rows():
            name, number = row["name"], row["round"]
            if name == "dropped":
                self._say(f"round {number}: device {row.get('device')} dropped:", "yellow", row)
            elif name in ("collapsed", "features_not_finite"):
                self._say(f"round {number}: {name}:", "red", row)
            elif "device" not in row and row["value"] is not None and 0 <= number <= self._rounds:
                self._latest[name] = row["value"]
                if name in ("asked", "arrived", "seconds"):
                    self._move(name, number)
        if self._output is not None:
            self._output.update(self._bar)

    def _say(self, what: str, colour: str, row: Row) -> None:
        self._bar.print(Text.assemble((redacted(what), colour), " ", redacted(row.get("reason", "no reason given"))))

    def _move(self, name: str, number: int) -> None:
        """A closed round counts as 1, an open one as its share of replies."""
        asked, arrived = (self._latest.get(key, 0) for key in ("asked", "arrived"))
        if name == "asked":
            arrived = self._latest["arrived"] = 0
        done = number if name == "seconds" else number - 1 + arrived / max(asked, arrived, 1)
        replies = "" if name == "seconds" else f"  {arrived:.0f} of {asked:.0f} replies"
        self._bar.update(self._task, completed=done, description=f"round {number}{replies}{self._values()}")

    def _values(self) -> str:
        shown = [("loss", "loss", "{:.3f}"), ("knn", "kNN", "{:.1f} %")]
        parts = [f"  {label} {form.format(self._latest[key])}" for key, label, form in shown if key in self._latest]
        return "".join(parts)


def accuracies(values: Mapping[str, Any]) -> dict[str, float]:
    """Heading -> percent: kNN, then the linear probe at each label fraction, then what other evaluators measured."""
    linear = {f"linear, {float(fraction):.0%} labels": value for fraction, value in values["linear"].items()}
    first = {} if values["knn"] is None else {"kNN": values["knn"]}
    return {**first, **linear, **values.get("other", {})}


def result_table(summary: Mapping[str, Any]) -> Table:
    """Untrained against trained encoder; without labels there are no accuracies, only loss and feature_std.

    The dataset is what the encoder was evaluated on: devices may have seen other images.
    """
    trained = accuracies(summary)
    names = ("encoder", "method", "policy", "clients", "rounds", "seed")
    title = " ".join(f"{key}={summary[key]}" for key in (("dataset", *names) if trained else names))
    if not trained:
        values = {name: summary[name] for name in ("loss", "feature_std") if summary[name] is not None}
        table = comparison_table(title, [("trained without labels", values)])
    else:
        before = "pretrained" if summary.get("pretrained") else "untrained"
        rows = [(before, accuracies(summary["untrained"])), ("trained", trained)]
        table = comparison_table(title, rows, "accuracy (%)", digits=1)
    table.caption = Text("\n".join(_remarks(summary)))
    return table


def _remarks(summary: Mapping[str, Any]) -> Iterable[str]:
    """Below the table: privacy spent, rounds that failed."""
    if summary.get("epsilon") is not None:
        yield f"epsilon {summary['epsilon']:.4g} at delta {summary['delta']:g}"
    elif "epsilon" in summary:
        yield f"epsilon is infinite: {summary['no_privacy']}"
    if summary.get("failed_rounds"):
        yield f"{summary['failed_rounds']} of {summary['rounds']} rounds failed; the last {summary['last_failure']}"


def comparison_table(
    title: str, rows: Sequence[tuple[str, Mapping[str, float]]], corner: str = "", digits: int = 2
) -> Table:
    """One row of named values per label."""
    names = list(dict.fromkeys(name for _, values in rows for name in values))
    cells = [
        [label, *(f"{values[name]:.{digits}f}" if name in values else "" for name in names)] for label, values in rows
    ]
    return plain_table(title, [[corner, *names], *cells])


def plain_table(title: str, rows: Sequence[Sequence[str]], lines: bool = True) -> Table:
    """The first row holds the headings; long text is wrapped. Without `lines` it is narrow enough for a matrix."""
    headings, *others = rows
    table = Table(title=title) if lines else Table(title=title, box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    for row in others:
        table.add_row(*row)
    return table


def findings_table(title: str, rows: Iterable[tuple[str, str, str, str]]) -> Table:
    """Checks of `sofed doctor`: name, verdict, what was seen, what to do."""
    colours = {"ok": "green", "warn": "yellow", "fail": "red", "unknown": "dim"}
    table = Table("check", "", "seen", "what to do", title=title)
    for name, verdict, seen, remedy in rows:
        table.add_row(name, Text(verdict, colours[verdict]), seen, remedy)
    return table
