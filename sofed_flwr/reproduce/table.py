"""`sofed reproduce`: a table of the paper, cell by cell, its results on disk after every one of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from sofed_flwr.component import ConfigError
from sofed_flwr.config import compose
from sofed_flwr.reproduce.grid import SCALES, Cell, Table, cells, find_table
from sofed_flwr.reproduce.plot import draw
from sofed_flwr.reproduce.results import Results, collect, markdown
from sofed_flwr.reproduce.runs import Outcome, Simulate, perform, place
from sofed_flwr.reproduce.timing import batch_seconds
from sofed_flwr.store import write_atomically

TIMED_ITERATIONS = 120
"""More than the longest lazy interval, so that every interval's rescoring is in the mean."""


@dataclass(frozen=True)
class Order:
    """What to reproduce: `data` replaces downloads by .npz files; `only` keeps rows whose name contains one of them."""

    table: Table
    scale: str
    seeds: int
    data: Mapping[str, str]
    only: Sequence[str]
    more: Sequence[str]

    def cells(self) -> list[Cell]:
        """The runs it takes."""
        chosen = cells(self.table, self.scale, self.seeds, self.data, list(self.more))
        wanted = [part.lower() for part in self.only]
        return [cell for cell in chosen if not wanted or any(part in cell.name.lower() for part in wanted)]

    @property
    def stem(self) -> str:
        """What the files with its results are called."""
        return f"{self.table.name}_{self.scale}"

    @property
    def command(self) -> str:
        """How to order the same again."""
        files = [f"--data {name}={file}" for name, file in self.data.items()]
        only = [f"--only '{part}'" for part in self.only]
        size = f"--scale {self.scale} --seeds {self.seeds}"
        return " ".join(["sofed reproduce", self.table.name, size, *files, *only, *self.more])


def order(name: str, scale: str, seeds: int, data: Sequence[str], only: Sequence[str], more: Sequence[str]) -> Order:
    """Check what the user asked for, before anything starts."""
    if scale not in SCALES:
        raise ConfigError(f"scale={scale}: choose one of {', '.join(SCALES)}")
    files = dict(_file(item) for item in data)
    wanted = Order(find_table(name), scale, seeds, files, only, more)
    if not wanted.cells():
        raise ConfigError(f"only={', '.join(only)}: no cell of {name} is called that")
    return wanted


def reproduce(wanted: Order, results: Path, runs: Path, simulate: Simulate, announce: Callable[[str], None]) -> Results:
    """Run what is missing; results are written after every cell, so nothing is lost when it is stopped."""
    todo = wanted.cells()
    timed = any(column.value == "batch_time" for column in wanted.table.columns)
    earlier = _earlier_times(results / f"{wanted.stem}.json") if timed else {}
    outcomes: list[Outcome] = []
    began, performed = monotonic(), 0
    for number, cell in enumerate(todo, start=1):
        directory = place(cell, runs)
        if directory.summary.exists():
            outcomes.append(Outcome(cell, directory))
            continue
        announce(f"{number} of {len(todo)}: {cell}{_left(monotonic() - began, performed, len(todo) - number + 1)}")
        outcomes.append(perform(cell, directory, simulate))
        performed += 1
        if outcomes[-1].failure:
            announce(f"{number} of {len(todo)} failed: {outcomes[-1].failure}")
        _write(wanted, outcomes, earlier, results)
    content = _write(wanted, outcomes, _time_rows(todo, earlier, announce) if timed else {}, results)
    write_atomically(results / f"{wanted.stem}.svg", draw(wanted.table, content, outcomes).encode())
    return content


def _write(wanted: Order, outcomes: Sequence[Outcome], seconds: Mapping[str, float], folder: Path) -> Results:
    facts = {"scale": wanted.scale, "seeds": wanted.seeds, "command": wanted.command}
    content = collect(wanted.table, outcomes, seconds, facts)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{wanted.stem}.json", (json.dumps(content, indent=1) + "\n").encode())
    write_atomically(folder / f"{wanted.stem}.md", markdown(content, wanted.table).encode())
    return content


def _earlier_times(file: Path) -> dict[str, float]:
    return dict(json.loads(file.read_text())["batch_seconds"]) if file.exists() else {}


def _time_rows(todo: Sequence[Cell], earlier: dict[str, float], announce: Callable[[str], None]) -> dict[str, float]:
    """Seconds per batch of every row, all in one measurement, or as an earlier one left them."""
    configs = {cell.row: cell.overrides for cell in reversed(todo)}
    if earlier.keys() == configs.keys():
        return earlier
    announce("measuring seconds per batch, all rows in turn")
    return batch_seconds({row: compose(overrides) for row, overrides in configs.items()}, TIMED_ITERATIONS)


def _left(spent: float, performed: int, remaining: int) -> str:
    return f" (about {spent / performed * remaining / 60:.0f} min left)" if performed else ""


def _file(item: str) -> tuple[str, str]:
    name, _, file = item.partition("=")
    if not Path(file).is_file():
        raise ConfigError(f"data={item}: expected NAME=FILE.npz with a file that exists, such as cifar10=cifar10.npz")
    return name, file


def failures(results: Mapping[str, Any]) -> list[str]:
    """One line per cell without a result."""
    return [f"{run['row']}, seed {run['seed']}: {run['failure']}" for run in results["runs"] if run["failure"]]
