"""What to reproduce: checked before anything starts, with the names of its result files."""

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sofed_flwr.analysis.reproduce.grid import SCALES, Cell, Table, cells, find_table
from sofed_flwr.config.override_text import merged
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError

LONGEST = 100
"""Characters of settings in a file's name."""


@dataclass(frozen=True)
class Order:
    """What to reproduce: `data` replaces downloads by .npz files; `only` keeps cells that one of them names."""

    table: Table
    scale: str
    seeds: int
    data: Mapping[str, str]
    only: Sequence[str]
    more: Sequence[str]

    @cached_property
    def cells(self) -> list[Cell]:
        """Its runs."""
        every = self.grid(self.seeds)
        wanted = {cell.name for part in self.only for cell in _called(part.lower(), every)}
        return [cell for cell in every if not self.only or cell.name in wanted]

    def grid(self, seeds: int) -> list[Cell]:
        """Every run of the table, also those that were not ordered."""
        return list(cells(self.table, self.scale, seeds, self.data, self.more))

    @property
    def stem(self) -> str:
        """Name of its result files; other settings are another table."""
        left_out = RunConfig.no_effect_on_result()
        decisive = [text for text in merged(self.more, []) if re.split(r"[.=]", text, maxsplit=1)[0] not in left_out]
        return "_".join([self.table.name, self.scale, *([_file_name(sorted(decisive))] if decisive else [])])

    def whole(self, seeds: int) -> str:
        """The command that makes every cell of the table; those that are done are skipped."""
        files = [part for name, file in self.data.items() for part in ("--data", f"{name}={file}")]
        size = ["--scale", self.scale, "--seeds", str(seeds)]
        return shlex.join(["sofed", "reproduce", self.table.name, *size, *files, *self.more])


def order(
    name: str, scale: str | None, seeds: int, data: Sequence[str], only: Sequence[str], more: Sequence[str]
) -> Order:
    """Check the user's arguments."""
    table = find_table(name)
    if scale not in SCALES:
        given = f"--scale={scale}: choose one of" if scale else "--scale is missing; choose one of"
        raise ConfigError(f"{given} {', '.join(f'{key} ({size})' for key, size in SCALES.items())}")
    wanted = Order(table, scale, seeds, dict(_file(item) for item in data), only, more)
    if not wanted.cells:
        raise ConfigError(f"only={', '.join(only)}: no cell of {name} is called that")
    return wanted


def _called(part: str, every: Sequence[Cell]) -> list[Cell]:
    """Cells whose name begins with `part`, or else contains it: `reservoir` is not the decayed one, too."""
    begins = [cell for cell in every if cell.name.lower().startswith(part)]
    return begins or [cell for cell in every if part in cell.name.lower()]


def _file(item: str) -> tuple[str, str]:
    name, _, file = item.partition("=")
    if not Path(file).is_file():
        raise ConfigError(f"data={item}: expected NAME=FILE.npz with a file that exists, such as cifar10=cifar10.npz")
    return name, file


def _file_name(settings: Sequence[str]) -> str:
    """The settings themselves if they can be a file's name, else similar text with a hash."""
    text = "_".join(settings)
    plain = re.sub(r"[^A-Za-z0-9_.=-]+", "-", text)[:LONGEST]
    return plain if plain == text else f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
