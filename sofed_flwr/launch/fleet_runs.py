"""Which runs a fleet's SuperLink has, and in which directories they write.

Flower knows which runs are active; a record in the site holds a run's directory. Flower is always asked first, so a
stale record has no effect.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sofed_flwr.core.errors import RunFailed
from sofed_flwr.launch.flwr_cli import FLEET, START_SECONDS, FlowerCommands
from sofed_flwr.storage.file_lock import take_lock
from sofed_flwr.storage.run_directory import RunDirectory


class FleetRuns:
    """The runs of one site; a record is a file that has the run's id as name and its directory as content."""

    def __init__(self, flower: FlowerCommands, home: Path) -> None:
        self.flower = flower
        self._records = home / "runs"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within the block, no other command can submit a run."""
        self._records.mkdir(exist_ok=True)
        with self._records.with_suffix(".lock").open("wb") as file:
            self.flower.until(lambda: take_lock(file), START_SECONDS) or self.flower.fail(
                "another command has been submitting a run to this fleet for minutes"
            )
            yield

    def unfinished(self) -> list[str]:
        """Ids of all runs that wait, start or run."""
        listed = self.flower.ask("list", FLEET)["runs"]
        return [str(run["run-id"]) for run in listed if not run["status"].startswith("finished")]

    def record(self, run_id: str, folder: Path) -> None:
        """Record where a run writes, and delete earlier records."""
        for earlier in self._records.iterdir():
            earlier.unlink()
        (self._records / run_id).write_text(str(folder), encoding="utf-8")

    def folder(self, run_id: str) -> Path | None:
        """Where a run writes; None for one that was submitted by other means."""
        with suppress(FileNotFoundError):
            return Path((self._records / run_id).read_text(encoding="utf-8"))
        return None

    def name(self, run_id: str) -> str:
        """A run's name in messages."""
        folder = self.folder(run_id)
        return f"Flower's run {run_id}, which sofed did not start" if folder is None else f"the run in {folder}"

    def is_orphaned(self, run_id: str) -> bool:
        """Whether a run's ServerApp started and is gone: Flower detects that only after a minute."""
        with suppress(FileNotFoundError):
            submitted = (self._records / run_id).stat().st_mtime
            folder = self.folder(run_id)
            return folder is not None and RunDirectory(folder).lock.was_lost_after(submitted)
        return False

    def was_stopped(self, run_id: str) -> bool:
        """Whether one of our commands stopped a run."""
        return self._stop_mark(run_id).exists()

    def stop(self, run_id: str) -> None:
        """Stop a run; it may have ended already. A full disk takes no mark, and must not keep a run going."""
        with suppress(OSError):
            self._records.mkdir(exist_ok=True)
            self._stop_mark(run_id).touch()
        with suppress(RunFailed):
            self.flower.ask("stop", run_id, FLEET)

    def _stop_mark(self, run_id: str) -> Path:
        return self._records / f"{run_id}.stopped"
