"""A run directory -> plain data. Finished or not, of this version or an earlier one: what is there is read.

Therefore the configuration is read as plain YAML and not validated: a report shows it, nothing runs by it.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from sofed_flwr.component import ConfigError
from sofed_flwr.runlog import Row, read_rows
from sofed_flwr.tensor_file import DamagedFileError

Curve = tuple[list[float], list[float]]
"""x and y; of a run's values: rounds and what was logged in them."""


@dataclass(frozen=True)
class ScoreTrace:
    """Importance scores on one device over iterations of one round, NaN where there is none; no interval: not lazy."""

    device: int
    round: int
    interval: int | None
    seen: list[float]
    low: list[float]
    mean: list[float]
    high: list[float]
    samples: dict[str, list[float]]


@dataclass(frozen=True)
class Run:
    """What a directory holds; `traces` has the newest of every traced device."""

    name: str
    config: dict[str, Any]
    config_text: str
    rows: list[Row]
    finished: bool
    traces: list[ScoreTrace]

    @cached_property
    def federation(self) -> dict[str, dict[int, float]]:
        """name -> round -> value of the federation as a whole."""
        return _by_name(row for row in self.rows if "device" not in row)

    @cached_property
    def devices(self) -> dict[int, list[Row]]:
        """device -> its rows."""
        numbers = sorted({row["device"] for row in self.rows if "device" in row})
        return {number: [row for row in self.rows if row.get("device") == number] for number in numbers}

    def curve(self, name: str) -> Curve:
        """A value of the federation over the rounds."""
        values = self.federation.get(name, {})
        return list(map(float, values)), list(values.values())

    def of_device(self, device: int) -> dict[str, dict[int, float]]:
        """name -> round -> value of one device."""
        return _by_name(self.devices[device])

    @property
    def last_round(self) -> int:
        """The last round that was closed; 0 is the evaluation before the first."""
        return max(self.federation.get("seconds", {}), default=0)


def read_run(path: Path) -> Run:
    """Read one directory; anything else is refused."""
    file = path / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"{path}: not a run directory, config.yaml is missing")
    try:
        text = file.read_text()
        config = yaml.safe_load(text)
        rows = read_rows(path / "metrics.jsonl")
        traces = [_trace(found) for found in _newest_traces(path)]
    except (ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise DamagedFileError(f"{path}: a file of the run is damaged ({' '.join(str(error).split())})") from error
    if not isinstance(config, dict):
        raise DamagedFileError(f"{path}: a file of the run is damaged (config.yaml holds no keys)")
    return Run(path.resolve().name, config, text, rows, (path / "summary.json").is_file(), traces)


def _by_name(rows: Iterable[Row]) -> dict[str, dict[int, float]]:
    """A value that was not a number (null) is a gap."""
    values: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["value"] is not None:
            values.setdefault(row["name"], {})[row["round"]] = row["value"]
    return values


def _newest_traces(path: Path) -> list[Path]:
    newest: dict[int, tuple[int, Path]] = {}
    for file in path.glob("devices/*/scores_round_*.json"):
        found = re.fullmatch(r"(\d+)/scores_round_(\d+)\.json", f"{file.parent.name}/{file.name}")
        if found:
            device, number = int(found[1]), int(found[2])
            newest[device] = max(newest.get(device, (-1, file)), (number, file))
    return [file for _, (_, file) in sorted(newest.items())]


def _trace(path: Path) -> ScoreTrace:
    content = json.loads(path.read_text())
    seen, low, mean, high = (_numbers(content[key]) for key in ("seen", "min", "mean", "max"))
    samples = {str(name): _numbers(values) for name, values in content["samples"].items()}
    if any(len(values) != len(seen) for values in (low, mean, high, *samples.values())):
        raise ValueError(f"{path.name}: lists of different lengths")
    return ScoreTrace(content["device"], content["round"], content["interval"], seen, low, mean, high, samples)


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else float(value) for value in values]
