"""A table in GitHub's markdown; each page escapes its own cells, since their text is trusted more or less."""

from collections.abc import Container, Iterable, Sequence


def markdown_table(rows: Iterable[Sequence[str]], right: Container[int] = ()) -> str:
    """The first row holds the headings; the columns `right` are numbers."""
    headings, *others = rows
    rule = ["---:" if place in right else "---" for place in range(len(headings))]
    return "".join(f"| {' | '.join(line)} |\n" for line in (headings, rule, *others))
