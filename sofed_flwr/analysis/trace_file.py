"""A device's score trace as a file: `device/score_trace.py` writes it, reports and tables draw it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError, model_validator

from sofed_flwr.core.errors import DamagedFileError
from sofed_flwr.storage.plain_files import LARGEST_RECORD, read_plain_file

Count = Annotated[int, Field(ge=0, le=10**12)]
Score = Annotated[float, Field(ge=-1e100, le=1e100)] | None
"""None where there is none; bounded by what can be drawn."""


class TraceFile(BaseModel):
    """Importance scores on one device over iterations of one round; no interval: not lazy."""

    device: Count
    round: Count
    interval: Count | None
    seen: list[Count]
    min: list[Score]
    mean: list[Score]
    max: list[Score]
    samples: dict[str, list[Score]]

    @model_validator(mode="after")
    def _of_one_length(self) -> TraceFile:
        if any(len(values) != len(self.seen) for values in (self.min, self.mean, self.max, *self.samples.values())):
            raise ValueError("lists of different lengths")
        return self


def find_traces(run: Path) -> dict[tuple[int, int], Path]:
    """(device, round) -> file, of every trace in a run's directory, in this order."""
    found = {}
    for file in run.glob("devices/*/scores_round_*.json"):
        if match := re.fullmatch(r"(\d+)/scores_round_(\d+)\.json", f"{file.parent.name}/{file.name}"):
            found[int(match[1]), int(match[2])] = file
    return dict(sorted(found.items()))


def read_trace(path: Path) -> TraceFile:
    """Read one; the error names a damaged file."""
    try:
        return TraceFile.model_validate_json(read_plain_file(path, LARGEST_RECORD))
    except ValidationError as error:
        raise DamagedFileError(f"{path} is damaged ({error.errors()[0]['msg']})") from error
