"""What one check of `sofed doctor` says: a name, a verdict, what was seen, and what to do about it."""

from typing import Literal, NamedTuple

Verdict = Literal["ok", "warn", "fail", "unknown"]


class Finding(NamedTuple):
    """`unknown` is for what cannot be seen from here; only `fail` makes the command fail."""

    name: str
    verdict: Verdict
    seen: str
    remedy: str = ""
