"""How importance scores move while images stay in the buffer (paper, "Impacts of Lazy Scoring", Fig. 7).

A policy computes a score only when it is due; this records what it would be at every iteration of one round, by
rescoring the whole pool. Scores reveal something about images, so the file stays on the device and is never sent.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.records import Pool, Selection
from sofed_flwr.policies.base import Scorer
from sofed_flwr.storage.atomic_files import write_atomically


@dataclass
class ScoreTrace:
    """Watches the first `iterations` selections of a round; `facts` head the file."""

    path: Path
    facts: Mapping[str, int | None]
    weak_view: str
    iterations: int
    _seen: int = 0
    _entries: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    _ranges: list[tuple[int, float, float, float]] = field(default_factory=list)
    _samples: dict[int, dict[int, float]] = field(default_factory=dict)

    def selected(self, pool: Pool, selection: Selection, scorer: Scorer) -> None:
        """Record one iteration: every entry of the pool gets a number when it first appears, and keeps it."""
        if len(self._ranges) == self.iterations:
            return
        new = int(pool.is_new.sum())
        self._entries = self._numbered(len(pool))
        self._seen += new
        scores = scorer.score(pool.images, self.weak_view)
        self._ranges.append((self._seen, float(scores.min()), float(scores.mean()), float(scores.max())))
        for entry, score in zip(self._entries.tolist(), scores.tolist(), strict=True):
            self._samples.setdefault(entry, {})[len(self._ranges) - 1] = score
        self._entries = self._entries[selection.keep]

    def save(self) -> None:
        """One JSON file; of the entries, those that stayed from the first iteration to the last."""
        count = len(self._ranges)
        stayed = {
            entry: [scores[i] for i in range(count)] for entry, scores in self._samples.items() if len(scores) == count
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        names = ("seen", "min", "mean", "max")
        columns = dict(zip(names, map(list, zip(*self._ranges, strict=True)), strict=True))
        write_atomically(self.path, json.dumps({**self.facts, **columns, "samples": stayed}).encode())

    def _numbered(self, size: int) -> Tensor:
        """Numbers of the pool's entries: those known from before come first, as in the pool."""
        first = max(self._samples, default=-1) + 1
        fresh = torch.arange(first, first + size - len(self._entries))
        return torch.cat([self._entries, fresh])


def watchers(config: RunConfig, device: int, home: Path) -> dict[int, ScoreTrace]:
    """Round -> trace, for the device that is to be traced; the file is beside its state."""
    trace = config.trace
    if trace is None or trace.device != device:
        return {}
    file = home / f"scores_round_{trace.round}.json"
    facts = {"device": device, "round": trace.round, "interval": config.policy.get("lazy_interval")}
    return {trace.round: ScoreTrace(file, facts, config.policy["weak_view"], trace.iterations)}
