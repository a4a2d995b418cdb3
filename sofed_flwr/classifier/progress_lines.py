"""How far a long command is where nobody sees a bar: in a log, in a job of a cluster, behind a pipe."""

import sys
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

EVERY_S = 10.0
"""Seconds between two lines: what is done by then needs none."""


def lines(items: Sequence[Any], what: str) -> Iterator[Any]:
    """The items one by one; now and then a line on stderr says how many are done, and when the others may be."""
    began = told = monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = monotonic()
        if now - told > EVERY_S and done < len(items):
            told = now
            left = (now - began) / done * (len(items) - done)
            print(f"sofed: {what}: {done} of {len(items)}, about {left:.0f} s left", file=sys.stderr, flush=True)
