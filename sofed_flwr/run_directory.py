"""A run's directory: what is in it, and under which name.

config.yaml           the resolved configuration
metrics.jsonl         one line per round and name
checkpoint/           the global model and what the aggregator remembers, once per round, resumable
devices/<id>/         the simulated devices' own state
encoder.safetensors   the result: the backbone, with what is needed to rebuild it
summary.json          the result in numbers
tensorboard/          the diary once more, with tracking=tensorboard
server.lock           held while a server works here
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sofed_flwr.contracts import State
from sofed_flwr.prefixes import over, under
from sofed_flwr.run_lock import RunLock
from sofed_flwr.runlog import RunLog
from sofed_flwr.store import Generation, Store, write_atomically

MEMORY = "aggregator/"
"""Before the names of the aggregator's tensors, in the one file that commits a round; no model's names begin so."""


@dataclass(frozen=True)
class Checkpoint:
    """A committed round: the run's name stays the same over all resumes."""

    run: str
    round: int
    shared: State
    aggregator: State = field(default_factory=dict)


class RunDirectory:
    """Reads and writes one run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.encoder = path / "encoder.safetensors"
        self.summary = path / "summary.json"
        self.log = RunLog(path / "metrics.jsonl")
        self.lock = RunLock(path / "server.lock")
        self._checkpoints = Store(path / "checkpoint")

    def begin(self, config: str) -> Checkpoint | None:
        """Create it, or find the last committed round and take back what was logged after it; then it is ours."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock.take()
        newest = self._checkpoints.newest()
        write_atomically(self.config, config.encode())
        self.log.rewind(-1 if newest is None else newest.number)
        return None if newest is None else _checkpoint(newest)

    def commit(self, checkpoint: Checkpoint) -> None:
        """After this, the round is done, whatever happens."""
        tensors = checkpoint.shared | over(MEMORY, checkpoint.aggregator)
        self._checkpoints.save(Generation(checkpoint.round, tensors, {"run": checkpoint.run}))

    def device_home(self, device: int) -> Path:
        """Where a simulated device keeps its state."""
        return self.path / "devices" / str(device)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """The last thing a run writes: a directory without it holds an unfinished run."""
        write_atomically(self.summary, (json.dumps(summary, indent=2) + "\n").encode())


def _checkpoint(committed: Generation) -> Checkpoint:
    shared = {name: tensor for name, tensor in committed.tensors.items() if not name.startswith(MEMORY)}
    return Checkpoint(committed.meta["run"], committed.number, shared, under(MEMORY, committed.tensors))
