"""`sofed reproduce`: a table of the paper, cell by cell; results are on disk after every cell.

It can be stopped and started again: finished cells are skipped, an unfinished one is resumed.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from time import monotonic
from typing import Any

from sofed_flwr.analysis.reproduce.grid import Cell
from sofed_flwr.analysis.reproduce.order import Order
from sofed_flwr.analysis.reproduce.plan import in_words, place
from sofed_flwr.analysis.reproduce.plot import draw
from sofed_flwr.analysis.reproduce.records import RunRecord, merged, read_earlier, record
from sofed_flwr.analysis.reproduce.results import Results, collect, machine, markdown
from sofed_flwr.analysis.reproduce.timing import batch_seconds
from sofed_flwr.config.override_text import quoted
from sofed_flwr.core.errors import ConfigError, InterruptedRunError, RunFailed
from sofed_flwr.core.redaction import one_line
from sofed_flwr.storage.atomic_files import write_atomically
from sofed_flwr.storage.run_directory import RunDirectory

Simulate = Callable[[Sequence[str]], Any]

TIMED_ITERATIONS = 120
"""More than the longest lazy interval, so that every interval's rescoring is in the mean."""


def reproduce(
    wanted: Order, results: Path, runs: Path, simulate: Simulate, announce: Callable[[str], None], jobs: int = 1
) -> Results:
    """Run what is missing, `jobs` cells at a time; results are written after every cell, so a stop loses nothing.

    The file of results is read again before each write: another terminal may run other cells of the same table.
    """
    read_earlier(results / f"{wanted.stem}.json")  # a damaged one is refused before hours of work
    found = [(cell, place(cell.config, runs)) for cell in wanted.cells]
    read = [(cell, home, record(cell, home, wanted.table)) for cell, home in found]
    records = [run for _, _, run in read if run.finished]
    todo = [(cell, home) for cell, home, run in read if not run.finished]
    began = monotonic()
    for number, (cell, home, failure) in enumerate(_performed(todo, simulate, announce, jobs), start=1):
        records.append(record(cell, home, wanted.table, failure))
        left = in_words((monotonic() - began) / number * (len(todo) - number))
        announce(f"{len(records)} of {len(found)} {f'failed: {failure}' if failure else 'done'}: {cell} ({left} left)")
        _write(wanted, records, results)
    content = _write(wanted, records, results, _time_rows(wanted, results, announce) if wanted.table.timed else None)
    drawn = [RunRecord.model_validate(run) for run in content["runs"]]
    write_atomically(results / f"{wanted.stem}.svg", draw(wanted.table, content, drawn).encode())
    return content


def _performed(
    todo: Sequence[tuple[Cell, RunDirectory]], simulate: Simulate, announce: Callable[[str], None], jobs: int
) -> Iterator[tuple[Cell, RunDirectory, str | None]]:
    """Cells as they end, each with what made it fail; whatever stops one of them stops all."""

    def run(item: tuple[Cell, RunDirectory]) -> tuple[Cell, RunDirectory, str | None]:
        cell, home = item
        announce(f"running {cell}")
        return cell, home, _perform(cell, home, simulate)

    if jobs == 1:  # in this thread, so that Ctrl-C reaches the run itself
        yield from map(run, todo)
        return
    pool = ThreadPoolExecutor(jobs)
    try:
        for future in as_completed([pool.submit(run, item) for item in todo]):
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _perform(cell: Cell, directory: RunDirectory, simulate: Simulate) -> str | None:
    """Run a cell, from its last committed round if there is one; a failure is returned as text."""
    where = f"{'resume' if directory.config.exists() else 'out'}={quoted(str(directory.path))}"
    try:
        simulate([*cell.overrides, where])
    except (ConfigError, RunFailed) as error:
        return one_line(str(error))
    except InterruptedRunError as error:
        raise InterruptedRunError("interrupted; the same command continues where it stopped") from error
    return None


def _write(
    wanted: Order, records: Sequence[RunRecord], folder: Path, seconds: Mapping[str, float] | None = None
) -> Results:
    earlier = read_earlier(folder / f"{wanted.stem}.json")
    seeds = max([wanted.seeds, *(run.seed + 1 for run in earlier.runs)])
    facts = {
        "stem": wanted.stem,
        "scale": wanted.scale,
        "command": wanted.whole(seeds),
        "machines": list(dict.fromkeys([*earlier.machines, machine()])),
    }
    grid = wanted.grid(seeds)
    runs = merged(earlier.runs, records, grid)
    content = collect(wanted.table, runs, earlier.batch_seconds if seconds is None else seconds, facts)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{wanted.stem}.json", (json.dumps(content, indent=1) + "\n").encode())
    write_atomically(folder / f"{wanted.stem}.md", markdown(content, wanted.table).encode())
    return content


def _time_rows(wanted: Order, folder: Path, announce: Callable[[str], None]) -> dict[str, float]:
    """Seconds per batch of every row, all in one measurement, or as an earlier one left them."""
    earlier = read_earlier(folder / f"{wanted.stem}.json")
    rows = {cell.row for cell in wanted.cells} | earlier.batch_seconds.keys()
    if rows == earlier.batch_seconds.keys():
        return earlier.batch_seconds
    configs = {cell.row: cell.config for cell in reversed(wanted.grid(seeds=1)) if cell.row in rows}
    announce("measuring seconds per batch, all rows in turn")
    return batch_seconds(configs, TIMED_ITERATIONS)


def failures(results: Mapping[str, Any]) -> list[str]:
    """One line per cell without a result."""
    return [f"{run['row']}, seed {run['seed']}: {run['failure']}" for run in results["runs"] if run["failure"]]
