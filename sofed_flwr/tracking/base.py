"""Trackers: the metrics log in the format of another tool's viewer.

`metrics.jsonl` stays the record that resume, summary and report read; a tracker is a copy, so nothing a round
computes depends on it, and a resumed run may change it.
"""

from collections.abc import Mapping
from typing import Protocol


class Tracker(Protocol):
    """Built with the run's `directory` and the last `committed` round (-1: none); later rounds are written again."""

    def write(self, round_number: int, values: Mapping[str, float], device: int | None = None) -> None:
        """Follow one entry of the metrics log; without a device the values are the federation's."""

    def close(self) -> None:
        """The run is over."""
