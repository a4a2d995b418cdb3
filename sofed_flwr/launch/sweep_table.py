"""Results of a sweep: a row per run, then mean and standard deviation of the runs that differ in their seed only."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, NamedTuple

from sofed_flwr.core.markdown import markdown_table
from sofed_flwr.launch.progress import accuracies

UNLABELED = ("loss", "feature_std")
"""Values to compare without labels."""


@dataclass(frozen=True)
class Outcome:
    """A finished run: its summary, or the reason of its failure."""

    job: list[str]  # all its overrides
    own: list[str]  # those that not all runs of the sweep have
    summary: Mapping[str, Any] | None = None
    failure: str | None = None

    @property
    def label(self) -> str:
        """The overrides that differ from the other runs."""
        return " ".join(self.own)

    @property
    def values(self) -> dict[str, float]:
        """Heading -> number."""
        if self.summary is None:
            return {}
        rest = {name: self.summary[name] for name in UNLABELED if self.summary.get(name) is not None}
        return accuracies(self.summary) or rest


class Mean(NamedTuple):
    """Runs with the same overrides but for the seed; the deviation is that of a sample (n - 1)."""

    overrides: str
    seeds: int
    mean: dict[str, float]
    deviation: dict[str, float]


def means(outcomes: Sequence[Outcome]) -> Iterator[Mean]:
    """One for each set of overrides that was run with several seeds."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.summary is not None:
            rest = " ".join(text for text in outcome.own if not text.startswith("seed="))
            groups.setdefault(rest, []).append(outcome)
    for label, group in groups.items():
        if len(group) > 1:
            columns = {name: [run.values[name] for run in group if name in run.values] for name in group[0].values}
            several = {name: column for name, column in columns.items() if len(column) > 1}
            middle = {name: mean(column) for name, column in several.items()}
            yield Mean(label, len(group), middle, {name: stdev(column) for name, column in several.items()})


def as_cells(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Headings, then rows; the first column says which overrides."""
    names = list(dict.fromkeys(name for outcome in outcomes for name in outcome.values))
    rows = [["run", *names]]
    for outcome in outcomes:
        found = [f"{outcome.values[name]:.2f}" if name in outcome.values else "" for name in names]
        rows.append([f"{outcome.label} (failed)" if outcome.failure else outcome.label, *found])
    for group in means(outcomes):
        found = [f"{group.mean[n]:.2f} ± {group.deviation[n]:.2f}" if n in group.mean else "" for n in names]
        rows.append([f"{group.overrides} mean of {group.seeds} seeds".strip(), *found])
    return rows


def as_markdown(outcomes: Sequence[Outcome]) -> str:
    """The table, and the reason of each failure below it."""
    table = markdown_table([cell.replace("|", "\\|") for cell in row] for row in as_cells(outcomes))
    return table + "".join(f"\n{outcome.label}: {outcome.failure}\n" for outcome in outcomes if outcome.failure)


def as_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The same for programs, with every number in full."""
    runs = [{"overrides": run.job, "values": run.values, "failure": run.failure} for run in outcomes]
    return {"runs": runs, "means": [group._asdict() for group in means(outcomes)]}
