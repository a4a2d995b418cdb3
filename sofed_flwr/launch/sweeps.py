"""`sofed run -m`: a grid of runs, all checked before the first one starts; a failed run does not stop the others.

The directory of a sweep holds its runs by number, `sweep.json` with the overrides of each, and the table so far in
`table.md` and `table.json`. So an interrupted sweep can be continued: finished runs are skipped, an
interrupted one goes on from its last committed round.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sofed_flwr.build import check
from sofed_flwr.config.compose import compose, refuse_reach, sweep
from sofed_flwr.config.override_text import quoted
from sofed_flwr.core.errors import ConfigError, DamagedFileError, InterruptedRunError, RunFailed
from sofed_flwr.launch.sweep_table import Outcome, as_json, as_markdown
from sofed_flwr.storage.atomic_files import write_atomically
from sofed_flwr.storage.plain_files import LARGEST_RECORD, read_plain_file
from sofed_flwr.storage.run_directory import RunDirectory

Simulate = Callable[[Sequence[str]], tuple[RunDirectory, dict[str, Any]]]


@dataclass(frozen=True)
class Sweep:
    """The overrides of each run, and where all of them are."""

    directory: Path
    jobs: list[list[str]]

    def run_directory(self, number: int) -> RunDirectory:
        """Of one run, begun or not."""
        return RunDirectory(self.directory.resolve() / str(number))

    def overrides(self, number: int) -> list[str]:
        """What starts a run, or continues it."""
        held = self.run_directory(number)
        return [*self.jobs[number], f"{'resume' if held.config.exists() else 'out'}={quoted(str(held.path))}"]

    def own(self, number: int) -> list[str]:
        """The overrides that not all runs have."""
        own = [text for text in self.jobs[number] if any(text not in job for job in self.jobs)]
        return own or self.jobs[number]

    def finished(self, number: int) -> dict[str, Any] | None:
        """The summary of a finished run, or None."""
        held = self.run_directory(number)
        return held.result(compose(self.overrides(number)).rounds) if held.config.exists() else None


def plan_sweep(overrides: Sequence[str]) -> Sweep:
    """`a=1,2 b=3,4`: a new sweep, or the one that `out=` holds already. `resume=DIR`: the one in DIR."""
    places = {text.partition("=")[0]: text.partition("=")[2].strip("'\"") for text in overrides}
    others = [text for text in overrides if not text.startswith(("out=", "resume="))]
    if "resume" in places:
        if others or "out" in places:
            raise ConfigError(f"resume={places['resume']}: continues a sweep as it was, without other overrides")
        return _read(Path(places["resume"]))
    default = datetime.now().strftime("multirun/%Y-%m-%d/%H-%M-%S")
    planned = Sweep(Path(places.get("out", default)), sweep(others))
    if (planned.directory / "sweep.json").exists() and _read(planned.directory) != planned:
        raise ConfigError(f"out={planned.directory}: holds another sweep; choose another out")
    return planned


def run_sweep(planned: Sweep, simulate: Simulate, say: Callable[[str], None]) -> list[Outcome]:
    """Every run, one after another; the table is written after each of them."""
    _check(planned)
    planned.directory.mkdir(parents=True, exist_ok=True)
    _write(planned.directory / "sweep.json", {"jobs": planned.jobs})
    outcomes: list[Outcome] = []
    try:
        for outcome in _outcomes(planned, simulate, say):
            outcomes.append(outcome)
            _write(planned.directory / "table.json", as_json(outcomes))
            write_atomically(planned.directory / "table.md", as_markdown(outcomes).encode())
    except (InterruptedRunError, KeyboardInterrupt) as error:
        raise InterruptedRunError(f"interrupted; continue with: {_again(planned)}") from error
    return outcomes


def refuse_failures(planned: Sweep, outcomes: Sequence[Outcome]) -> None:
    """Raise if a run failed, saying which."""
    failed = [f"\n{number} ({run.label}): {run.failure}" for number, run in enumerate(outcomes) if run.failure]
    if failed:
        what = f"{len(failed)} of {len(outcomes)} runs failed; try them again with: {_again(planned)}"
        raise RunFailed(what + "".join(failed))


def _outcomes(planned: Sweep, simulate: Simulate, say: Callable[[str], None]) -> Iterator[Outcome]:
    for number, job in enumerate(planned.jobs):
        say(" ".join(job))
        try:
            summary = planned.finished(number) or simulate(planned.overrides(number))[1]
            yield Outcome(job, planned.own(number), summary=summary)
        except (ConfigError, DamagedFileError, RunFailed, OSError) as error:
            say(f"failed: {error}")
            yield Outcome(job, planned.own(number), failure=str(error))


def _check(planned: Sweep) -> None:
    for number, job in enumerate(planned.jobs):
        try:
            if planned.finished(number) is None:
                check(compose(planned.overrides(number)))
        except ConfigError as error:
            raise ConfigError(f"run {number} of the sweep ({' '.join(job)}): {error}") from error


def _again(planned: Sweep) -> str:
    return f"sofed run -m resume={planned.directory}"


def _write(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def _read(directory: Path) -> Sweep:
    """What `run_sweep` wrote; anything else is refused in a sentence."""
    file = directory / "sweep.json"
    try:
        jobs = json.loads(read_plain_file(file, LARGEST_RECORD))["jobs"]
        of_lists = isinstance(jobs, list) and jobs and all(isinstance(job, list) for job in jobs)
        if not of_lists or not all(isinstance(text, str) for job in jobs for text in job):
            raise TypeError
    except FileNotFoundError as error:
        raise ConfigError(f"resume={directory}: there is no sweep to continue, {file.name} is missing") from error
    except (ValueError, TypeError, KeyError, RecursionError, DamagedFileError) as error:
        raise ConfigError(f"{file}: is damaged; expected the overrides of each run") from error
    for job in jobs:
        refuse_reach(job, str(file))
    return Sweep(directory, jobs)
