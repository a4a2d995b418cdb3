"""The report: one HTML file that needs nothing else, and its headline as a markdown table beside it.

Whatever comes from a run (configuration, labels, reasons) is escaped where it becomes HTML: here, in `tables.py` and by
matplotlib.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from sofed_flwr.component import ConfigError
from sofed_flwr.report import costs, learning, selection, tables
from sofed_flwr.report.labels import label
from sofed_flwr.report.read import read_run
from sofed_flwr.report.section import Runs, Section
from sofed_flwr.store import write_atomically

CSS = """
:root { color-scheme: light dark; --text: #1a1a1a; --faint: #5c5c5c; --line: #d8d8d8; --page: #fafafa; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --faint: #a8a8a8; --line: #444444; --page: #171717; }
}
main { display: grid; gap: 0 1rem; grid-template-columns: minmax(0, 1fr); }
@media (min-width: 60rem) {
  main { grid-template-columns: repeat(2, minmax(0, 1fr)); } section:not(.half) { grid-column: 1 / -1; }
}
body { margin: 0 auto; max-width: 70rem; padding: 1rem; background: var(--page); color: var(--text);
       font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 0.3rem; } h3 { font-size: 1rem; }
h1, h3, summary { overflow-wrap: anywhere; }
.caption { color: var(--faint); margin: 0 0 0.8rem; max-width: 46rem; }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 28rem), 1fr)); }
.charts svg { width: 100%; height: auto; box-sizing: border-box; padding: 0.4rem; background: white;
              border: 1px solid var(--line); border-radius: 0.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.7rem; border-bottom: 1px solid var(--line); text-align: right; }
th { vertical-align: bottom; } th.words, td.words { text-align: left; }
td { overflow-wrap: break-word; max-width: 20rem; }
pre { overflow-x: auto; font-size: 0.85rem; }
summary { cursor: pointer; }
"""


def write_report(paths: Sequence[Path], out: Path) -> str:
    """Write `out` and its .md; returns the markdown."""
    if out.suffix != ".html":
        raise ConfigError(f"--out={out}: the page is a file whose name ends in .html")
    runs = label([read_run(path) for path in paths])
    markdown = tables.headline(runs).markdown()
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page(runs).encode())
    write_atomically(out.with_suffix(".md"), markdown.encode())
    return markdown


def page(runs: Runs) -> str:
    """The whole file."""
    title = escape(next(iter(runs)) if len(runs) == 1 else f"{len(runs)} runs compared")
    made = [
        _overview(runs),
        learning.accuracy(runs),
        learning.learning_curves(runs),
        learning.loss(runs),
        learning.collapse(runs),
        selection.discarding(runs),
        selection.rescoring(runs),
        selection.score_trends(runs),
        costs.time(runs),
        costs.upload(runs),
        _devices(runs),
        _configuration(runs),
    ]
    body = "\n".join(_html(section) for section in made if section.tables or section.charts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _overview(runs: Runs) -> Section:
    caption = (
        "What was run and how far it came; a report of an unfinished run shows the rounds so far. Seconds are "
        "wall-clock time, summed over the rounds."
    )
    return Section("Overview", caption, tables=[tables.overview(runs).html()])


def _devices(runs: Runs) -> Section:
    caption = (
        "Sums over all rounds a device answered; the loss is their mean. A device is dropped from a round when it does "
        "not answer in time or its reply is not usable; the round goes on without it. Discarded: share of the images "
        "seen that did not get into the buffer. Rescored: share of buffer entries whose score was computed anew."
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


def _html(section: Section) -> str:
    charts = f'<div class="charts">{"".join(section.charts)}</div>' if section.charts else ""
    half = ' class="half"' if len(section.charts) == 1 else ""
    return (
        f"<section{half}>\n<h2>{escape(section.title)}</h2>\n"
        f'<p class="caption">{escape(section.caption)}</p>\n{"".join(section.tables)}{charts}\n</section>'
    )
