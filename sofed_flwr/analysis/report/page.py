"""The report: one HTML file that needs nothing else, and its headline as a markdown table beside it.

Everything from a run (configuration, labels, reasons) is escaped where it becomes HTML: here, in `tables.py` and by
matplotlib.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from sofed_flwr.analysis.buffers.held import read_all, simulated_homes
from sofed_flwr.analysis.buffers.sheet import Sheet, sheets
from sofed_flwr.analysis.report import buffers, costs, learning, selection, tables
from sofed_flwr.analysis.report.labels import label
from sofed_flwr.analysis.report.read import read_run
from sofed_flwr.analysis.report.section import Runs, Section, document
from sofed_flwr.analysis.report.turnover import turnover
from sofed_flwr.core.errors import ConfigError
from sofed_flwr.storage.atomic_files import SECRET, write_atomically


def write_report(paths: Sequence[Path], out: Path, images: bool = True) -> str:
    """Write `out` and its .md; returns the markdown. Only its owner may read a page with images in it."""
    if out.suffix != ".html":
        raise ConfigError(f"--out={out}: the page is a file whose name ends in .html")
    runs = label([read_run(path) for path in paths])
    markdown = tables.headline(runs).markdown()
    out.parent.mkdir(parents=True, exist_ok=True)
    held = {name: read_all(simulated_homes(path)) for name, path in zip(runs, paths, strict=True)}
    drawn = sheets(next(iter(held.values()))) if images and len(runs) == 1 else []
    write_atomically(out, page(runs, held, drawn).encode(), SECRET if drawn else None)
    write_atomically(out.with_suffix(".md"), markdown.encode())
    return markdown


def page(runs: Runs, held: buffers.Buffers, drawn: Sequence[Sheet]) -> str:
    """The whole file; images are `drawn` for one run, as of several there would be too many to look at."""
    title = next(iter(runs)) if len(runs) == 1 else f"{len(runs)} runs compared"
    made = [
        _overview(runs),
        learning.accuracy(runs),
        learning.learning_curves(runs),
        learning.loss(runs),
        learning.collapse(runs),
        selection.discarding(runs),
        selection.rescoring(runs),
        selection.contents(runs),
        selection.score_trends(runs),
        turnover(runs),
        buffers.holdings(held),
        buffers.pictures(drawn),
        costs.time(runs),
        costs.upload(runs),
        _devices(runs),
        _configuration(runs),
    ]
    return document(title, made)


def _overview(runs: Runs) -> Section:
    caption = (
        "The runs and their progress; a report of an unfinished run shows the rounds so far. Seconds are "
        "wall-clock time, summed over the rounds."
    )
    return Section("Overview", caption, tables=[tables.overview(runs).html()])


def _devices(runs: Runs) -> Section:
    caption = (
        "Sums over all rounds a device answered; the loss is their mean. A device is dropped from a round when it does "
        "not answer in time or its reply is not usable; the round goes on without it. Discarded: share of the images "
        "seen that did not get into the buffer. Rescored: share of buffer entries whose score was recomputed."
    )
    shown = [(label, tables.devices(run)) for label, run in runs.items() if run.devices]
    headed = [(f"<h3>{escape(label)}</h3>" if len(runs) > 1 else "") + table.html() for label, table in shown]
    return Section("Devices", caption, tables=headed)


def _configuration(runs: Runs) -> Section:
    boxes = [
        f"<details><summary>{escape(label)}</summary><pre>{escape(run.config_text)}</pre></details>"
        for label, run in runs.items()
    ]
    return Section("Configuration", "The resolved configuration, as kept in config.yaml.", tables=boxes)
