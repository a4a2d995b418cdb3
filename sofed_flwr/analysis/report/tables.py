"""The report's tables, as HTML and as markdown; every cell is untrusted text."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import mean

from sofed_flwr.analysis.report.read import Run
from sofed_flwr.core.markdown import markdown_table
from sofed_flwr.core.metrics import of_evaluators
from sofed_flwr.core.redaction import one_line
from sofed_flwr.server.summary import RATIOS

NOTHING = "–"
MOST_OTHERS = 8
"""Columns for evaluators that are not ours: a log may be anybody's."""


@dataclass(frozen=True)
class Table:
    """A heading and rows of text; the columns `words` are text, the others numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Collection[int] = (0,)

    def html(self) -> str:
        """In a box that scrolls, so that a wide table does not make the whole page wide."""
        head = "".join(f"<th{self._kind(place)}>{escape(text)}</th>" for place, text in enumerate(self.head))
        body = "".join(
            "<tr>"
            + "".join(f"<td{self._kind(place)}>{escape(one_line(text))}</td>" for place, text in enumerate(row))
            + "</tr>\n"
            for row in self.rows
        )
        return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>'

    def markdown(self) -> str:
        """A GitHub table, with every character of a cell escaped."""
        numbers = {place for place in range(len(self.head)) if place not in self.words}
        return markdown_table(([_literal(text) for text in row] for row in (self.head, *self.rows)), right=numbers)

    def _kind(self, place: int) -> str:
        return ' class="words"' if place in self.words else ""


def headline(runs: Mapping[str, Run]) -> Table:
    """The encoder before and after training: kNN, then the linear probe at each label fraction."""
    names = accuracy_names(runs)
    rows = [
        [label, run.before if number == 0 else f"round {number}", *(_cell(run, name, number) for name in names)]
        for label, run in runs.items()
        for number in _first_and_last(run, names)
    ]
    return Table(["run", "encoder", *(f"{accuracy_title(name)} (%)" for name in names)], rows, words=(0, 1))


def accuracy_names(runs: Mapping[str, Run]) -> list[str]:
    """kNN first, then the linear probes by label fraction, then what other evaluators measured."""
    names = {name for run in runs.values() for name in run.federation}
    linear = sorted((name for name in names if re.fullmatch(r"linear_\d(\.\d{1,17})?", name)), key=_fraction)
    return [*(["knn"] if "knn" in names else []), *linear, *of_evaluators(names)[:MOST_OTHERS]]


def accuracy_title(name: str) -> str:
    """`linear_0.1` -> linear, 10 % labels."""
    if name.startswith("linear_"):
        return f"linear, {_fraction(name) * 100:g} % labels"
    return "kNN" if name == "knn" else one_line(name, 40)


def overview(runs: Mapping[str, Run]) -> Table:
    """Settings and progress of each run."""
    groups = ("dataset", "encoder", "method", "policy", "strategy")
    rows = []
    for label, run in runs.items():
        planned = run.config.get("rounds", NOTHING)
        seconds = sum(run.federation.get("seconds", {}).values())
        facts = [str(run.choices.get(group, NOTHING)) for group in groups]
        more = [str(run.config.get(key, NOTHING)) for key in ("clients", "seed")]
        state = "finished" if run.finished else "unfinished"
        rows.append([label, state, *facts, *more, f"{run.last_round} of {planned}", f"{seconds:.0f}"])
    return Table(["run", "state", *groups, "clients", "seed", "rounds", "seconds"], rows, words=range(7))


def devices(run: Run) -> Table:
    """One row per device that ever answered or was dropped."""
    head = ["device", "rounds answered", "dropped", "mean loss", "images seen", "discarded (%)", "rescored (%)"]
    more = ["scoring (s)", "training (s)", "uploaded (MB)", "last reason for a drop"]
    return Table([*head, *more], [_device(run, number) for number in run.devices], words=(0, len(head) + len(more) - 1))


def _device(run: Run, number: int) -> list[str]:
    values = run.of_device(number)
    sums = {name: sum(rounds.values()) for name, rounds in values.items()}
    losses = values.get("loss", {})
    shares = [
        100 * sums[part] / sums[whole] if part in sums and sums.get(whole) else None for part, whole in RATIOS.values()
    ]
    reasons = [str(row["reason"]) for row in run.devices[number] if row.get("reason")]
    return [
        str(number),
        str(len({row["round"] for row in run.devices[number] if row["name"] != "dropped"})),
        f"{sums.get('dropped', 0):.0f}",
        _number(mean(losses.values()) if losses else None, 3),
        _number(sums.get("seen"), 0),
        *(_number(share, 1) for share in shares),
        *(_number(sums.get(name), 1) for name in ("seconds_scoring", "seconds_training")),
        _number(sums["bytes_up"] / 1e6 if "bytes_up" in sums else None, 2),
        reasons[-1] if reasons else NOTHING,
    ]


def _first_and_last(run: Run, names: Sequence[str]) -> list[int]:
    evaluated = {number for name in names for number in run.federation.get(name, {})}
    return sorted({min(evaluated), max(evaluated)}) if evaluated else []


def _cell(run: Run, name: str, number: int) -> str:
    return _number(run.federation.get(name, {}).get(number), 1)


def _fraction(name: str) -> float:
    return float(name.removeprefix("linear_"))


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def _literal(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|~&$#])", r"\\\1", one_line(text))
