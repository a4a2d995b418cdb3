"""The name that a user may have meant."""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

CLOSE = 0.7
"""Share of equal letters: `polcy` and `policy` have 0.91, `lru` and `fifo` none."""


def did_you_mean(word: str, known: Iterable[str], before: str = "") -> str:
    """The end of a complaint about an unknown name: the closest one there is, after `before`; or nothing.

    A nested key is often given without what stands before it: `lr` for `optimizer.lr`.
    """
    names = list(known)
    best = max(names, key=lambda name: _closeness(word, name), default="")
    if _closeness(word, best) < CLOSE:
        best = next((name for name in names if name.rpartition(".")[2] == word), "")
    return f"; did you mean {before}{best}?" if best else ""


def _closeness(word: str, name: str) -> float:
    """Of the part that differs most: `federation.colour` is not close to `federation.quorum`."""
    pairs = zip(re.split("[.=]", word), re.split("[.=]", name), strict=False)
    same_depth = re.sub("[^.=]", "", word) == re.sub("[^.=]", "", name)
    return min(SequenceMatcher(None, ours, theirs).ratio() for ours, theirs in pairs) if same_depth else 0.0
