"""The run's diary: `metrics.jsonl`, one line per round, name and (where it is one device's) device.

Append-only while a run goes on, so the progress bar, the report and a human with `tail -f` all read the same file. What
a full disk refuses is appended when it takes rows again.
"""

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sofed_flwr.store import write_atomically

Row = dict[str, Any]


class RunLog:
    """Appends rows to `metrics.jsonl` and takes back the rounds a crash left uncommitted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._refused = ""

    def write(
        self, round_number: int, values: Mapping[str, float], device: int | None = None, reason: str | None = None
    ) -> None:
        """Append one row per value; a value that is not a number is written as null (JSON has no NaN)."""
        more = {key: value for key, value in (("device", device), ("reason", reason)) if value is not None}
        rows = [
            {"round": round_number, "name": name, "value": value if math.isfinite(value) else None, **more}
            for name, value in values.items()
        ]
        self._append(self._refused + "".join(json.dumps(row) + "\n" for row in rows))

    def rewind(self, round_number: int) -> None:
        """Drop the rows of rounds after `round_number`, which a resumed run is about to repeat."""
        kept = [row for row in read_rows(self.path) if row["round"] <= round_number]
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in kept).encode())

    def _append(self, lines: str) -> None:
        """All or none of it: the rest of a line would spoil the next one."""
        self._refused = lines
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("a") as file:
                file.write(lines)
        except OSError:
            with suppress(OSError):
                os.truncate(self.path, size)
            raise
        self._refused = ""


def read_rows(path: Path) -> list[Row]:
    """All complete rows; the last line may still be in the writing."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
