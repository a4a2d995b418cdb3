"""A run's directory: what is in it, and under which name.

config.yaml           the resolved configuration
metrics.jsonl         one line per round and name
privacy.jsonl         which global models were sent, and with how much noise
checkpoint/           the global model and what the strategy remembers, once per round, resumable
devices/<id>/         the simulated devices' own state
encoder.safetensors   the result: the backbone, with what is needed to rebuild it
summary.json          the result in numbers
tensorboard/          a copy of the metrics log, with tracking=tensorboard
server.lock           held while a server works here
earlier-<n>/          all of this but the privacy ledger, from before the n-th restart=true
"""

import errno
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from sofed_flwr.core.errors import ConfigError
from sofed_flwr.core.records import State
from sofed_flwr.core.state_dicts import not_finite, over, under
from sofed_flwr.storage.atomic_files import write_atomically
from sofed_flwr.storage.generations import Generation, Store
from sofed_flwr.storage.metrics_log import RunLog
from sofed_flwr.storage.privacy_ledger import PrivacyLedger
from sofed_flwr.storage.run_lock import RunLock
from sofed_flwr.storage.summary_file import read_summary

MEMORY = "strategy/"
GATE = "gate/"
"""Prefixes of the strategy's and the gate's tensors in a checkpoint; no tensor of a model begins like this.
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A closed round, how many rounds counted and models were sent so far; `run` is the same after a resume.

    `pretrained` names the weights that the run began with, None for random ones.
    """

    run: str
    round: int
    shared: State
    strategy: State = field(default_factory=dict)
    gate: State = field(default_factory=dict)
    counted: int = 0
    releases: int = 0
    pretrained: Mapping[str, str] | None = None


class RunDirectory:
    """Reads and writes one run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.encoder = path / "encoder.safetensors"
        self.summary = path / "summary.json"
        self.log = RunLog(path / "metrics.jsonl")
        self.ledger = PrivacyLedger(path / "privacy.jsonl")
        self.lock = RunLock(path / "server.lock")
        self.checkpoints = Store(path / "checkpoint")

    def commit(self, checkpoint: Checkpoint) -> None:
        """After this the round is committed. A directory that was deleted is not created again."""
        tensors = checkpoint.shared | over(MEMORY, checkpoint.strategy) | over(GATE, checkpoint.gate)
        name = not_finite(tensors)
        assert name is None, f"{name} of round {checkpoint.round} is not finite"
        if not self.config.is_file():
            raise FileNotFoundError(errno.ENOENT, "the run directory is gone", str(self.config))
        meta = {key: getattr(checkpoint, key) for key in ("run", "round", "counted", "releases", "pretrained")}
        self.checkpoints.save(Generation(checkpoint.round, tensors, meta))

    def device_home(self, device: int) -> Path:
        """Where a simulated device keeps its state."""
        return self.path / "devices" / str(device)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """The last file of a run: a directory without it holds an unfinished run."""
        write_atomically(self.summary, (json.dumps(summary, indent=2) + "\n").encode())

    def missing(self) -> list[str]:
        """The files of a finished run that are not there."""
        files = (self.config, self.log.path, self.encoder, self.summary)
        return [file.name for file in files if not file.is_file()]

    def result(self, rounds: int) -> dict[str, Any] | None:
        """The summary of a run with this many rounds and all its files; None if it is not finished."""
        summary = read_summary(self.summary)
        whole = summary is not None and summary.rounds == rounds and not self.missing()
        return summary.model_dump(exclude_unset=True) if summary and whole else None

    def newest(self) -> Checkpoint | None:
        """The last committed round that can be read and is finite, or None."""
        for generation in self.checkpoints.generations():
            name = not_finite(generation.tensors)
            if name is None:
                return self._checkpoint(generation)
            log.warning("%s of round %d is not finite; falling back to the round before", name, generation.number)
        return None

    def set_aside(self) -> None:
        """Nothing is deleted, and the checkpoint is moved first: an interrupted move leaves no run to resume."""
        earlier = next(path for n in count(1) if not (path := self.path / f"earlier-{n}").exists())
        earlier.mkdir()
        shutil.copy2(self.config, earlier)
        for name in ("checkpoint", "devices", "tensorboard", "metrics.jsonl", "encoder.safetensors", "summary.json"):
            if (self.path / name).exists():
                (self.path / name).rename(earlier / name)

    def _checkpoint(self, committed: Generation) -> Checkpoint:
        tensors, meta, number = committed.tensors, committed.meta, committed.number
        run = meta.get("run")
        # before there was a ledger, rounds were not counted, and each may have released a model
        counted, releases = counts = [meta.get(key, number) for key in ("counted", "releases")]
        pretrained = meta.get("pretrained")
        whole = all(type(count) is int and count >= 0 for count in counts) and _is_text(pretrained)
        if not isinstance(run, str) or not whole or meta.get("round", number) != number:
            raise ConfigError(f"{self.checkpoints.directory}: not the checkpoint of a run's round {number}")
        shared = {name: tensor for name, tensor in tensors.items() if not name.startswith((MEMORY, GATE))}
        return Checkpoint(
            run, number, shared, under(MEMORY, tensors), under(GATE, tensors), counted, releases, pretrained
        )


def _is_text(facts: Any) -> bool:
    """A mapping from text to text, or None."""
    return facts is None or (isinstance(facts, dict) and all(isinstance(value, str) for value in facts.values()))
