"""Charts as SVG text to put into a page. The only place that knows matplotlib.

Equal data gives equal text (fixed hash salt, no date), and text stays text: it can be searched, and is never read as
mathematics. Legends stand below the axes, where they cover no data.
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from textwrap import fill
from typing import Any

from sofed_flwr.component import ConfigError

try:
    import matplotlib
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ConfigError(
        "matplotlib, which draws the report, is not installed; pip install 'sofed-flwr[report]'"
    ) from error

Curve = tuple[Sequence[float], Sequence[float]]

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
WIDTH, HEIGHT = 5.0, 2.9  # inches
LEGEND_LINE = 0.21  # inches
LEGEND_WIDTH = 50  # characters


def line_chart(
    series: Mapping[str, Curve],
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    y_limits: tuple[float | None, float | None] = (None, None),
    reference: float | None = None,
) -> str:
    """One line per name. A series without points is left out but keeps its colour for the next chart's sake.

    `reference` is a dashed horizontal line. `y_limits` of None follow the data.
    """
    axes = _axes(title, x_label, y_label)
    drawn: dict[str, Artist] = {}
    for number, (name, (xs, ys)) in enumerate(series.items()):
        if len(xs):
            marker = "o" if len(xs) <= 30 else ""
            drawn[name] = axes.plot(xs, ys, marker=marker, markersize=4, **_line(number))[0]
    if reference is not None:
        axes.axhline(reference, color="#666666", linestyle="--", linewidth=1.2)
    axes.set_ylim(*y_limits)
    return _svg(axes, drawn if len(series) > 1 else {})


def stacked_bars(
    xs: Sequence[float], parts: Mapping[str, Sequence[float]], *, x_label: str, y_label: str, title: str = ""
) -> str:
    """One bar per x, made of the named parts, the first at the bottom."""
    axes = _axes(title, x_label, y_label)
    floor = [0.0] * len(xs)
    drawn: dict[str, Artist] = {}
    for number, (name, heights) in enumerate(parts.items()):
        drawn[name] = axes.bar(xs, heights, bottom=floor, width=0.8, color=COLOURS[number])[0]
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    return _svg(axes, drawn, columns=len(parts))


def range_chart(
    xs: Sequence[float],
    low: Sequence[float],
    middle: Sequence[float],
    high: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    *,
    x_label: str,
    y_label: str,
    title: str = "",
) -> str:
    """A shaded range, dots for its middle, and lines on top."""
    axes = _axes(title, x_label, y_label)
    drawn: dict[str, Artist] = {
        "min to max": axes.fill_between(xs, low, high, color=COLOURS[0], alpha=0.15, linewidth=0),
        "mean": axes.plot(xs, middle, "o", color=COLOURS[0], markersize=4)[0],
    }
    for number, (name, ys) in enumerate(lines.items()):
        drawn[name] = axes.plot(xs, ys, **_line(number + 1))[0]
    return _svg(axes, drawn, columns=4)


def _line(number: int) -> dict[str, Any]:
    dashes = DASHES[number // len(COLOURS) % len(DASHES)]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": dashes}


def _axes(title: str, x_label: str, y_label: str) -> Axes:
    with matplotlib.rc_context(STYLE):
        axes = Figure(figsize=(WIDTH, HEIGHT), layout="constrained").add_subplot()
        axes.set_title(fill(title, LEGEND_WIDTH), fontsize=11, loc="left")
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
        return axes


def _svg(axes: Axes, legend: Mapping[str, Artist], columns: int = 1) -> str:
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE):
        if legend:
            names = [fill(name, LEGEND_WIDTH) for name in legend]
            lines = math.ceil(sum(name.count("\n") + 1 for name in names) / columns)
            figure.set_figheight(HEIGHT + LEGEND_LINE * lines)
            figure.legend(list(legend.values()), names, loc="outside lower left", ncols=columns, frameon=False)
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = buffer.getvalue()
    # Without the XML prologue, which has no place in a page, and the ids that would repeat from chart to chart.
    text = re.sub(r' id="[^"]*_\d+"', "", text[text.index("<svg") :])
    alternative = escape(f"{axes.get_ylabel()} over {axes.get_xlabel()}")
    return text.replace("<svg ", f'<svg role="img" aria-label="{alternative}" ', 1)
