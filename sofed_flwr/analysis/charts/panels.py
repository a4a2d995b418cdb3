"""Panels: each knows its data and how to draw it on one pair of axes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sofed_flwr.analysis.trace_file import TraceFile
from sofed_flwr.core.redaction import one_line

Curve = Mapping[int, float] | Mapping[float, float]
"""x -> y; drawn in the order of x."""
Legend = dict[str, Artist]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which colour-blind readers can tell apart; its yellow is too pale on white."""
BINS = 24
"""Of a histogram, at most."""
DASHES = ("-", "--", ":", "-.")
TRACED = len(COLOURS) - 1
"""Images drawn in a score trend: one colour each, besides that of the range."""


@dataclass(frozen=True, kw_only=True)
class Panel(ABC):
    """One pair of axes; `legend_columns` names stand side by side in its legend."""

    legend_columns: ClassVar[int] = 4
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
        for number, (name, curve) in enumerate(self.series.items()):
            if curve:
                marker = "o" if len(curve) <= 30 else ""
                xs, ys = zip(*sorted(curve.items()), strict=True)
                drawn[name] = axes.plot(xs, ys, marker=marker, markersize=4, **_line(number))[0]
        if self.reference is not None:
            axes.axhline(self.reference, color="#666666", linestyle="--", linewidth=1.2)
        axes.set_ylim(*self.y_limits)
        return drawn if len(self.series) > 1 else {}


@dataclass(frozen=True)
class Bars(Panel):
    """One bar per x, made of the named parts, the first at the bottom."""

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
class ScoreTrend(Panel):
    """A shaded range of scores, dots for their mean, and lines for the images that stayed throughout."""

    trace: TraceFile

    def draw(self, axes: Axes) -> Legend:
        """The range below, the lines above; NaN where there is no score."""
        xs = self.trace.seen
        low, middle, high = (np.array(part, float) for part in (self.trace.min, self.trace.mean, self.trace.max))
        drawn: Legend = {
            "min to max": axes.fill_between(xs, low, high, color=COLOURS[0], alpha=0.15, linewidth=0),
            "mean": axes.plot(xs, middle, "o", color=COLOURS[0], markersize=4)[0],
        }
        stayed = [(name, scores) for name, scores in self.trace.samples.items() if None not in scores]
        for number, (name, scores) in enumerate(stayed[:TRACED], start=1):
            drawn[f"i-{one_line(name, 20)}"] = axes.plot(xs, np.array(scores, float), **_line(number))[0]
        return drawn


@dataclass(frozen=True)
class Dots(Panel):
    """A row per name with filled dots and a hollow one: several of ours, one to compare with (None: there is none).

    The hollow ones have an axis of their own, above: what compares is the order, not the level.
    """

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


@dataclass(frozen=True)
class Histogram(Panel):
    """How many values there are of which size, the named series on top of each other; `whole` numbers share no bin."""

    series: Mapping[str, Sequence[float]]
    _: KW_ONLY
    whole: bool = False

    def draw(self, axes: Axes) -> Legend:
        """The first series at the bottom."""
        edges = self._edges()
        floor = np.zeros(len(edges) - 1)
        drawn: Legend = {}
        for number, (name, values) in enumerate(self.series.items()):
            top = floor + np.histogram(values, edges)[0]
            colour = COLOURS[number % len(COLOURS)]
            drawn[name] = axes.stairs(top, edges, baseline=floor, fill=True, color=colour)
            floor = top
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        if not self.whole:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=8))
        return drawn if len(self.series) > 1 else {}

    def _edges(self) -> list[float]:
        values = [value for series in self.series.values() for value in series]
        low, high = min(values), max(values)
        if self.whole:
            step = math.ceil((high - low + 1) / BINS)
            return [low - 0.5 + step * number for number in range(math.ceil((high - low + 1) / step) + 1)]
        width = (high - low) / BINS or 0.01
        return [low + width * number for number in range(BINS + 1)]


def score_trend(trace: TraceFile, label: str = "") -> ScoreTrend:
    """A device's trace; `label` begins the title."""
    interval = "" if trace.interval is None else f", T = {trace.interval}"
    title = f"{label}device {trace.device}, round {trace.round}{interval}"
    return ScoreTrend(trace, x_label="images seen in the round", y_label="importance score", title=title)


def _dots(axes: Axes, pairs: Sequence[tuple[float, float]], colour: str, filling: str) -> Artist:
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    axes.tick_params(axis="x", labelcolor=colour)
    return axes.plot(xs, ys, "o", color=colour, markerfacecolor=filling, markersize=7, alpha=0.8)[0]


def _line(number: int) -> dict[str, Any]:
    dashes = DASHES[number // len(COLOURS) % len(DASHES)]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": dashes}
