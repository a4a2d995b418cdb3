"""Result of one check of `sofed doctor`: a name, a verdict, what was seen, and what to do about it."""

from typing import Literal, NamedTuple

Verdict = Literal["ok", "warn", "fail", "unknown"]


class Finding(NamedTuple):
    """`unknown` is for what this machine cannot check; only `fail` makes the command fail."""

    name: str
    verdict: Verdict
    seen: str
    remedy: str = ""
