"""Sections of the report, the chart most of them are made of, and the page they make up.

`page.html` needs nothing else, and is readable in the light and in the dark, on a phone and on paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from sofed_flwr.analysis.charts.panels import Lines
from sofed_flwr.analysis.charts.svg import chart
from sofed_flwr.analysis.report.read import Curve, Run

Runs = Mapping[str, Run]
"""By label."""


@dataclass(frozen=True)
class Section:
    """A heading, a caption that says what is shown, in which unit and how to read it, and finished HTML below it."""

    title: str
    caption: str
    tables: Sequence[str] = ()
    charts: Sequence[str] = ()

    def html(self) -> str:
        """A section with one chart leaves room for another beside it."""
        charts = f'<div class="charts">{"".join(self.charts)}</div>' if self.charts else ""
        half = ' class="half"' if len(self.charts) == 1 else ""
        return (
            f"<section{half}>\n<h2>{escape(self.title)}</h2>\n"
            f'<p class="caption">{escape(self.caption)}</p>\n{"".join(self.tables)}{charts}\n</section>'
        )


def document(title: str, sections: Sequence[Section]) -> str:
    """The whole file; a section with nothing to show is left out."""
    page = Template(Path(__file__).with_name("page.html").read_text())
    shown = [section.html() for section in sections if section.tables or section.charts]
    return page.substitute(title=escape(title), sections="\n".join(shown))


def over_rounds(
    curves: Mapping[str, Curve],
    y_label: str,
    title: str = "",
    y_limits: tuple[float | None, float | None] = (None, None),
    reference: float | None = None,
) -> list[str]:
    """One chart with a line per run, or none if no run has a value."""
    if not any(curves.values()):
        return []
    panel = Lines(curves, x_label="round", y_label=y_label, title=title, y_limits=y_limits, reference=reference)
    return [chart(panel)]


def curves(runs: Runs, name: str) -> dict[str, Curve]:
    """A value of the federation, by run."""
    return {label: run.federation.get(name, {}) for label, run in runs.items()}
