"""Sections as one HTML file that needs nothing else, readable in the light and in the dark, on a phone and on paper."""

from collections.abc import Sequence
from html import escape

from sofed_flwr.analysis.report.section import Section

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
.sheet { display: block; max-width: 100%; height: auto; margin: 0.8rem 0; box-sizing: border-box; background: white;
         border: 1px solid var(--line); border-radius: 0.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.7rem; border-bottom: 1px solid var(--line); text-align: right; }
th { vertical-align: bottom; } th.words, td.words { text-align: left; }
td { overflow-wrap: break-word; max-width: 20rem; }
pre { overflow-x: auto; font-size: 0.85rem; }
summary { cursor: pointer; }
"""


def document(title: str, sections: Sequence[Section]) -> str:
    """The whole file; a section with nothing to show is left out."""
    body = "\n".join(_html(section) for section in sections if section.tables or section.charts)
    head = (
        '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>"
    )
    page = f"<h1>{escape(title)}</h1>\n<main>\n{body}\n</main>"
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{page}\n</body>\n</html>\n'


def _html(section: Section) -> str:
    charts = f'<div class="charts">{"".join(section.charts)}</div>' if section.charts else ""
    half = ' class="half"' if len(section.charts) == 1 else ""
    return (
        f"<section{half}>\n<h2>{escape(section.title)}</h2>\n"
        f'<p class="caption">{escape(section.caption)}</p>\n{"".join(section.tables)}{charts}\n</section>'
    )
