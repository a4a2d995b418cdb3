"""A run directory -> plain data, finished or not, of this version or an earlier one.

So the configuration is read as plain YAML and not validated: a report only shows it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sofed_flwr.analysis.trace_file import TraceFile, find_traces, read_trace
from sofed_flwr.config.plain_yaml import bytes_of, read_yaml
from sofed_flwr.core.errors import ConfigError, DamagedFileError
from sofed_flwr.storage.metrics_log import Row, read_rows
from sofed_flwr.storage.plain_files import refuse_links
from sofed_flwr.storage.summary_file import read_summary

Curve = dict[int, float]
"""round -> value."""
Values = dict[str, Curve]
"""name -> round -> value."""


@dataclass(frozen=True)
class Run:
    """Content of a directory; `traces` has the newest of every traced device."""

    name: str
    config: Mapping[str, Any]
    config_text: str
    rows: list[Row]
    finished: bool
    traces: list[TraceFile]

    @cached_property
    def federation(self) -> Values:
        """Of the federation as a whole."""
        return _by_name(row for row in self.rows if "device" not in row)

    @cached_property
    def devices(self) -> dict[int, list[Row]]:
        """device -> its rows."""
        told = [row for row in self.rows if "device" in row]
        by_device: dict[int, list[Row]] = {number: [] for number in sorted({row["device"] for row in told})}
        for row in told:
            by_device[row["device"]].append(row)
        return by_device

    @property
    def choices(self) -> Mapping[str, Any]:
        """Group -> the component chosen for it."""
        choices = self.config.get("choices")
        return choices if isinstance(choices, Mapping) else {}

    @property
    def before(self) -> str:
        """What the encoder of round 0 is."""
        return "pretrained" if self.config.get("pretrained") else "untrained"

    @property
    def overridden(self) -> list[str]:
        """The keys that the user gave a value."""
        overrides = self.config.get("overrides")
        given = overrides if isinstance(overrides, list) else []
        return [str(override).partition("=")[0].lstrip("+~") for override in given]

    def of_device(self, device: int) -> Values:
        """Of one device."""
        return _by_name(self.devices[device])

    @cached_property
    def summed(self) -> Values:
        """Of all devices together."""
        sums: Values = {}
        for device in self.devices:
            for name, rounds in self.of_device(device).items():
                of_name = sums.setdefault(name, {})
                for number, value in rounds.items():
                    of_name[number] = of_name.get(number, 0.0) + value
        return sums

    @property
    def last_round(self) -> int:
        """The last round that was closed; 0 is the evaluation before the first."""
        return max(self.federation.get("seconds", {}), default=0)


def read_run(path: Path) -> Run:
    """Read one directory; anything else is refused."""
    file = path / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"{path}: not a run directory, config.yaml is missing")
    refuse_links(path)
    newest = {device: found for (device, _), found in find_traces(path).items()}
    traces = [read_trace(found) for found in newest.values()]
    try:
        text = bytes_of(file).decode()
        config = read_yaml(text.encode(), file.name)
        rows = read_rows(path / "metrics.jsonl")
    except ValueError as error:
        raise DamagedFileError(f"{path}: a file of the run is damaged ({' '.join(str(error).split())})") from error
    return Run(path.resolve().name, config, text, rows, read_summary(path / "summary.json") is not None, traces)


def _by_name(rows: Iterable[Row]) -> Values:
    """A value that was not a number (null) is a gap."""
    values: Values = {}
    for row in rows:
        if row["value"] is not None:
            values.setdefault(row["name"], {})[row["round"]] = row["value"]
    return values
