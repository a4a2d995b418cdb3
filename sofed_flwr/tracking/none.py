"""No tracker: `metrics.jsonl` is the only record."""

from collections.abc import Mapping
from pathlib import Path


class NoTracker:
    """Follows nothing."""

    def __init__(self, directory: Path, committed: int) -> None:
        pass

    def write(self, round_number: int, values: Mapping[str, float], device: int | None = None) -> None:
        """See `Tracker`."""

    def close(self) -> None:
        """See `Tracker`."""
