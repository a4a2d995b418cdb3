"""The metrics log: `metrics.jsonl`, one line per round, name and (where it is one device's) device.

Append-only during a run, so the progress bar, the report and a person with `tail -f` read the same file. Rows that a
full disk refuses are appended later. Readers skip damaged lines: nothing that a run computes depends on the log.
"""

import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sofed_flwr.storage.atomic_files import write_atomically
from sofed_flwr.storage.plain_files import LARGEST_LOG, read_plain_file

Row = dict[str, Any]
LARGEST = 1e100
"""Values are compared, summed and drawn, and the margins of an axis must be finite as well."""
HIGHEST = 10**9
"""Round, and device."""

log = logging.getLogger(__name__)


class RunLog:
    """Appends rows to `metrics.jsonl` and removes the rounds that a crash left uncommitted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._refused = ""
        self._begun = False

    def write(
        self, round_number: int, values: Mapping[str, float], device: int | None = None, reason: str | None = None
    ) -> None:
        """Append one row per value; NaN and what is too large is written as null."""
        more = {key: value for key, value in (("device", device), ("reason", reason)) if value is not None}
        rows = [
            {"round": round_number, "name": name, "value": value if abs(value) <= LARGEST else None, **more}
            for name, value in values.items()
        ]
        self._append(self._refused + "".join(json.dumps(row) + "\n" for row in rows))

    def rewind(self, round_number: int) -> None:
        """Drop the rows of rounds after `round_number`, which a resumed run is about to repeat."""
        kept = [row for row in read_rows(self.path) if row["round"] <= round_number]
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self._begun = True

    def _append(self, lines: str) -> None:
        """All lines or none: part of a line would damage the next one. A log that was deleted is not created again."""
        self._refused = lines
        size = self.path.stat().st_size if self._begun or self.path.exists() else 0
        try:
            with self.path.open("a") as file:
                file.write(lines)
        except OSError:
            with suppress(OSError):
                os.truncate(self.path, size)
            raise
        self._refused = ""
        self._begun = True


def read_rows(path: Path) -> list[Row]:
    """All undamaged rows; the last line may be incomplete."""
    if not path.exists():
        return []
    lines = read_plain_file(path, LARGEST_LOG).split(b"\n")[:-1]
    rows = [row for row in map(parse_row, lines) if row is not None]
    if damaged := len(lines) - len(rows):
        log.warning("%s: %d damaged %s left out", path, damaged, "line is" if damaged == 1 else "lines are")
    return rows


def parse_row(line: bytes) -> Row | None:
    """One line as `RunLog` writes it, or None for anything else."""
    try:
        return _Line.model_validate_json(line).model_dump(exclude_unset=True)
    except ValidationError:
        return None


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    round: Annotated[int, Field(ge=0, le=HIGHEST)]
    name: str
    value: Annotated[int | float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)] | None
    device: Annotated[int, Field(ge=0, le=HIGHEST)] = 0
    reason: str = ""
