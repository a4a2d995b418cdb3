"""A section of the report, and the chart most sections are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sofed_flwr.analysis.charts.panels import Lines
from sofed_flwr.analysis.charts.svg import chart
from sofed_flwr.analysis.report.read import Curve, Run

Runs = Mapping[str, Run]
"""By label."""


@dataclass(frozen=True)
class Section:
    """A heading, a caption that says what is shown, in which unit and how to read it, and finished HTML below it.

    A section with neither tables nor charts is not shown.
    """

    title: str
    caption: str
    tables: Sequence[str] = ()
    charts: Sequence[str] = ()


def over_rounds(
    curves: Mapping[str, Curve],
    y_label: str,
    title: str = "",
    y_limits: tuple[float | None, float | None] = (None, None),
    reference: float | None = None,
) -> list[str]:
    """One chart with a line per run, or none if no run has a value."""
    if not any(rounds for rounds, _ in curves.values()):
        return []
    panel = Lines(curves, x_label="round", y_label=y_label, title=title, y_limits=y_limits, reference=reference)
    return [chart(panel)]


def curves(runs: Runs, name: str) -> dict[str, Curve]:
    """A value of the federation, by run."""
    return {label: run.curve(name) for label, run in runs.items()}
