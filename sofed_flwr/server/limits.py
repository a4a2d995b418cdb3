"""When a round counts, and when a run gives up."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """`quorum` usable replies make a round; `max_failed_rounds` in a row end the run; the rest is for the gate."""

    quorum: int
    max_failed_rounds: int
    norm_limit: float
    clip_norm: float | None = None
