"""Charts as SVG text, for pages and files. The only place that knows matplotlib.

A panel knows its data and how to draw it; `chart` makes a picture of one panel, `figure` of many. Equal data gives
equal text (fixed hash salt, no date), and text stays text: it can be searched, and is never read as mathematics.
Legends stand below the axes, where they cover no data.
"""

import io
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from html import escape
from textwrap import fill
from typing import Any, ClassVar

from sofed_flwr.component import ConfigError

try:
    import matplotlib
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ConfigError("matplotlib, which draws charts, is not installed; pip install 'sofed-flwr[report]'") from error

Curve = tuple[Sequence[float], Sequence[float]]
Legend = dict[str, Artist]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which colour-blind readers can tell apart; its yellow is too pale on white."""
DASHES = ("-", "--", ":", "-.")
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "sofed",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 11,
    "legend.fontsize": 10,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
WIDTH, HEIGHT = 5.6, 3.1  # inches of a panel
LEGEND_LINE = 0.21  # inches
LEGEND_WIDTH = 58  # characters
ABREAST = 3  # panels of a figure side by side


@dataclass(frozen=True, kw_only=True)
class Panel(ABC):
    """One pair of axes; `legend_columns` names stand side by side in its legend."""

    legend_columns: ClassVar[int]
    x_label: str
    y_label: str = ""
    title: str = ""

    @abstractmethod
    def draw(self, axes: Axes) -> Legend:
        """Put the data on the axes; what the legend should explain."""


@dataclass(frozen=True)
class Lines(Panel):
    """One line per name. A series without points is left out but keeps its colour for the next chart's sake.

    `reference` is a dashed horizontal line. `y_limits` of None follow the data.
    """

    legend_columns = 1
    series: Mapping[str, Curve]
    _: KW_ONLY
    y_limits: tuple[float | None, float | None] = (None, None)
    reference: float | None = None

    def draw(self, axes: Axes) -> Legend:
        """Markers only where there are few points."""
        drawn: Legend = {}
        for number, (name, (xs, ys)) in enumerate(self.series.items()):
            if len(xs):
                marker = "o" if len(xs) <= 30 else ""
                drawn[name] = axes.plot(xs, ys, marker=marker, markersize=4, **_line(number))[0]
        if self.reference is not None:
            axes.axhline(self.reference, color="#666666", linestyle="--", linewidth=1.2)
        axes.set_ylim(*self.y_limits)
        return drawn if len(self.series) > 1 else {}


@dataclass(frozen=True)
class Bars(Panel):
    """One bar per x, made of the named parts, the first at the bottom."""

    legend_columns = 4
    xs: Sequence[float]
    parts: Mapping[str, Sequence[float]]

    def draw(self, axes: Axes) -> Legend:
        """Each part on top of the one before."""
        floor = [0.0] * len(self.xs)
        drawn: Legend = {}
        for number, (name, heights) in enumerate(self.parts.items()):
            drawn[name] = axes.bar(self.xs, heights, bottom=floor, width=0.8, color=COLOURS[number])[0]
            floor = [low + height for low, height in zip(floor, heights, strict=True)]
        return drawn


@dataclass(frozen=True)
class Range(Panel):
    """A shaded range, dots for its middle, and lines on top."""

    legend_columns = 4
    xs: Sequence[float]
    low: Sequence[float]
    middle: Sequence[float]
    high: Sequence[float]
    lines: Mapping[str, Sequence[float]]

    def draw(self, axes: Axes) -> Legend:
        """The range below, the lines above."""
        drawn: Legend = {
            "min to max": axes.fill_between(self.xs, self.low, self.high, color=COLOURS[0], alpha=0.15, linewidth=0),
            "mean": axes.plot(self.xs, self.middle, "o", color=COLOURS[0], markersize=4)[0],
        }
        for number, (name, ys) in enumerate(self.lines.items()):
            drawn[name] = axes.plot(self.xs, ys, **_line(number + 1))[0]
        return drawn


@dataclass(frozen=True)
class Dots(Panel):
    """A row per name with filled dots and a hollow one: several of ours, one to compare with (None: there is none).

    The hollow ones have an axis of their own, above: what compares is the order, not the level.
    """

    legend_columns = 2
    rows: Sequence[str]
    filled: Sequence[Sequence[float]]
    hollow: Sequence[float | None]
    names: tuple[str, str]

    def draw(self, axes: Axes) -> Legend:
        """The first row on top."""
        ours, theirs = self.names
        pairs = [(value, row) for row, values in enumerate(self.filled) for value in values]
        drawn: Legend = {ours: _dots(axes, pairs, COLOURS[0], COLOURS[0])}
        pairs = [(value, row) for row, value in enumerate(self.hollow) if value is not None]
        if pairs:
            above = axes.twiny()
            above.grid(visible=False)
            drawn[theirs] = _dots(above, pairs, COLOURS[1], "none")
        axes.set_yticks(range(len(self.rows)), self.rows)
        axes.set_ylim(len(self.rows) - 0.5, -0.5)
        return drawn


def chart(panel: Panel) -> str:
    """One panel with its own legend."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        legend = _draw(panel, figure.add_subplot())
        _explain(figure, legend, panel.legend_columns)
        return _svg(figure, f"{panel.y_label} over {panel.x_label}")


def figure(title: str, panels: Sequence[Panel]) -> str:
    """Panels in rows under one title; panels that would explain the same names share one legend."""
    abreast = min(ABREAST, len(panels))
    down = math.ceil(len(panels) / abreast)
    with matplotlib.rc_context(STYLE):
        whole = Figure(figsize=(WIDTH * 0.9 * abreast, HEIGHT * down + 0.5), layout="constrained")
        whole.suptitle(title)
        legend: Legend = {}
        for number, panel in enumerate(panels, start=1):
            legend |= _draw(panel, whole.add_subplot(down, abreast, number))
        _explain(whole, legend, 2 * abreast)
        return _svg(whole, title)


def _draw(panel: Panel, axes: Axes) -> Legend:
    axes.set_title(fill(panel.title, LEGEND_WIDTH), fontsize=11, loc="left")
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    return panel.draw(axes)


def _dots(axes: Axes, pairs: Sequence[tuple[float, float]], colour: str, filling: str) -> Artist:
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    axes.tick_params(axis="x", labelcolor=colour)
    return axes.plot(xs, ys, "o", color=colour, markerfacecolor=filling, markersize=7, alpha=0.8)[0]


def _line(number: int) -> dict[str, Any]:
    dashes = DASHES[number // len(COLOURS) % len(DASHES)]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": dashes}


def _explain(figure: Figure, legend: Mapping[str, Artist], columns: int) -> None:
    if not legend:
        return
    names = [fill(name, LEGEND_WIDTH) for name in legend]
    lines = math.ceil(sum(name.count("\n") + 1 for name in names) / columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * lines)
    figure.legend(list(legend.values()), names, loc="outside lower left", ncols=columns, frameon=False)


def _svg(figure: Figure, alternative: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = buffer.getvalue()
    # Without the XML prologue, which has no place in a page, and the ids that would repeat from chart to chart.
    text = re.sub(r' id="[^"]*_\d+"', "", text[text.index("<svg") :])
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(alternative)}" ', 1)
