"""Charts as SVG text, for pages and files: `chart` makes a picture of one panel, `figure` of many.

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

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sofed_flwr.analysis.charts.panels import Legend, Panel

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
PANELS_PER_ROW = 3  # panels of a figure side by side


def chart(panel: Panel) -> str:
    """One panel with its own legend."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        legend = _draw(panel, figure.add_subplot())
        _explain(figure, legend, panel.legend_columns)
        return _svg(figure, f"{panel.y_label} over {panel.x_label}")


def figure(title: str, panels: Sequence[Panel]) -> str:
    """Panels in rows under one title; panels that would explain the same names share one legend."""
    columns = min(PANELS_PER_ROW, max(1, len(panels)))
    down = max(1, math.ceil(len(panels) / columns))
    with matplotlib.rc_context(STYLE):
        whole = Figure(figsize=(WIDTH * 0.9 * columns, HEIGHT * down + 0.5), layout="constrained")
        whole.suptitle(title)
        legend: Legend = {}
        for number, panel in enumerate(panels, start=1):
            legend |= _draw(panel, whole.add_subplot(down, columns, number))
        _explain(whole, legend, 2 * columns)
        return _svg(whole, title)


def _draw(panel: Panel, axes: Axes) -> Legend:
    axes.set_title(fill(panel.title, LEGEND_WIDTH), fontsize=11, loc="left")
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    return panel.draw(axes)


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
