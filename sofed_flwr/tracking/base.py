"""Trackers: the run's diary once more, in the format of somebody else's viewer.

`metrics.jsonl` stays the record that resume, summary and report read; a tracker only follows it, so nothing a round
computes depends on the tracker, and a resumed run may change it.
"""

from collections.abc import Mapping
from typing import Protocol


class Tracker(Protocol):
    """Built with the run's `directory` and the last `committed` round (-1: none), whose successors are written anew."""

    def write(self, round_number: int, values: Mapping[str, float], device: int | None = None) -> None:
        """Follow one entry of the diary; without a device the values are the federation's."""

    def close(self) -> None:
        """The run is over."""
