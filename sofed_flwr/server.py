"""The server's half of Algorithm 1, without the transport: aggregate a round, evaluate, commit.

A round is committed when its checkpoint is on disk; until then nothing of it counts, so a killed server starts again
from the round before. Whoever calls `close_round` for a committed round changes nothing. A disk that is full or
read-only does not end a run that may have days behind it: rounds go on in memory, and the next commit covers them all.
"""

import logging
import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from sofed_flwr.aggregators.base import Aggregator
from sofed_flwr.component import Component
from sofed_flwr.contracts import Split, Update
from sofed_flwr.encoder_file import save_encoder
from sofed_flwr.evaluation.collapse import COLLAPSED
from sofed_flwr.evaluation.suite import Suite
from sofed_flwr.gate import pass_gate
from sofed_flwr.methods.base import Method
from sofed_flwr.run_directory import Checkpoint, RunDirectory
from sofed_flwr.runlog import read_rows
from sofed_flwr.stops import RunStoppedError
from sofed_flwr.summary import RATIOS, summarise
from sofed_flwr.tracking.base import Tracker

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """When a round counts, and how many failed ones in a row end the run."""

    quorum: int
    patience: int
    norm_limit: float


class Server:
    """Holds the global model between rounds; `split` opens the dataset, once there is something to evaluate."""

    def __init__(
        self,
        directory: RunDirectory,
        committed: Checkpoint | None,
        tracker: Tracker,
        method: Method,
        aggregator: Aggregator,
        suite: Suite,
        split: Callable[[], Split],
        limits: Limits,
        rounds: int,
    ) -> None:
        self.directory = directory
        self.tracker = tracker
        self.method = method.eval()
        self.aggregator = aggregator
        self.suite = suite
        self.split = split
        self.limits = limits
        self.quorum = max(limits.quorum, aggregator.fewest)
        self.norm_limit = math.inf if aggregator.bounded else limits.norm_limit
        self.rounds = rounds
        self.run = committed.run if committed else uuid.uuid4().hex
        self.shared = committed.shared if committed else method.shared_state()
        self.committed = committed.round if committed else -1
        self.aggregator.load_state_dict(committed.aggregator if committed else {})
        self._failed_in_a_row = 0
        self._warned_of_disk = -1
        self._round_began = perf_counter()

    def aggregate(self, round_number: int, updates: Sequence[Update], failures: Mapping[int, str]) -> dict[str, float]:
        """W ← the aggregate of the replies that pass the gate; with too few of them W stays as it is."""
        accepted, dropped, sound = pass_gate(
            updates, self.shared, round_number, self.norm_limit, self.aggregator.directed
        )
        reasons = dict(failures) | dropped
        for device, reason in sorted(reasons.items()):
            log.warning("round %d: device %d dropped: %s", round_number, device, reason)
            self._record(round_number, {"dropped": 1}, device, reason)
        if len(accepted) < self.limits.quorum or sound < self.aggregator.fewest:
            self._fail(round_number, len(accepted), reasons)
            return {}
        self._failed_in_a_row = 0
        self.shared = self.aggregator.aggregate(accepted, self.shared)
        self._record(round_number, self.aggregator.report())
        return self._log_updates(round_number, accepted)

    def note_late(self, round_number: int, device: int) -> None:
        """A reply to an earlier round arrived in this one; it is not used."""
        self._record(round_number, {"late": 1}, device)

    def close_round(self, round_number: int) -> dict[str, float]:
        """Evaluate if it is time, log, commit; then stop where the aggregator will have no further round."""
        values = self._commit(round_number) if round_number > self.committed else {}
        reason = self.aggregator.exhausted() if round_number < self.rounds else None
        if reason is not None:
            keep = f"resume with rounds={self.committed} to keep the encoder"
            remedy = keep if self.committed > 0 else "no round was made"
            raise RunStoppedError(f"stopped after round {round_number}: {reason}; {remedy}")
        return values

    def _commit(self, round_number: int) -> dict[str, float]:
        values = {}
        if self.suite.due(round_number, self.rounds):
            self.method.load(self.shared)
            values = self.suite.run(self.method, self.method.features, self.split())
        self._record(round_number, values)
        self._watch_for_collapse(round_number, values)
        with self._despite_the_disk(round_number):
            self.directory.commit(Checkpoint(self.run, round_number, self.shared, self.aggregator.state_dict()))
            self.committed = round_number
        now = perf_counter()
        self._record(round_number, {"seconds": now - self._round_began})
        self._round_began = now
        return values

    def _watch_for_collapse(self, round_number: int, values: Mapping[str, float]) -> None:
        """An alarm, no stop: whoever sees it can resume with other settings."""
        spread = values.get("feature_std", 1.0)
        if spread < COLLAPSED:
            reason = f"all images look alike to it (feature_std {spread:.2g}, below {COLLAPSED:g})"
            log.warning("round %d: the encoder has collapsed: %s", round_number, reason)
            self._record(round_number, {"collapsed": 1}, reason=reason)

    def finish(self, encoder: Component, facts: Mapping[str, Any]) -> None:
        """Leave the encoder and the summary; `encoder` is the backbone's yaml, `facts` say what was trained."""
        self.method.load(self.shared)
        save_encoder(self.directory.encoder, self.method.backbone(), encoder, facts)
        self.directory.write_summary(summarise(read_rows(self.directory.log.path), facts))
        self.tracker.close()

    def _record(
        self, round_number: int, values: Mapping[str, float], device: int | None = None, reason: str | None = None
    ) -> None:
        """Into the diary, and to whoever follows it; a tracker has no place for reasons."""
        with self._despite_the_disk(round_number):
            self.directory.log.write(round_number, values, device, reason)
            self.tracker.write(round_number, values, device)

    @contextmanager
    def _despite_the_disk(self, round_number: int) -> Iterator[None]:
        """What cannot be written is a warning, one per round; `committed` says what is on disk."""
        try:
            yield
        except OSError as error:
            if self._warned_of_disk != round_number:
                log.warning("round %d cannot be saved (%s); going on from memory", round_number, error)
            self._warned_of_disk = round_number

    def _fail(self, round_number: int, accepted: int, reasons: Mapping[int, str]) -> None:
        self._failed_in_a_row += 1
        why = "; ".join(f"device {device}: {reason}" for device, reason in sorted(reasons.items())) or "no reply at all"
        text = f"round {round_number} had {accepted} usable replies of {self.quorum} needed ({why})"
        log.warning("%s; the global model stays as it is", text)
        self._record(round_number, {"failed": 1})
        if self._failed_in_a_row >= self.limits.patience:
            raise RunStoppedError(f"{text}; {self._failed_in_a_row} failed rounds in a row")

    def _log_updates(self, round_number: int, accepted: Sequence[Update]) -> dict[str, float]:
        for update in accepted:
            self._record(round_number, update.metrics, update.device)
        names = sorted({name for update in accepted for name in update.metrics})
        sums = {name: sum(update.metrics.get(name, 0.0) for update in accepted) for name in names}
        means = {name: sums[name] / len(accepted) for name in ("loss", "bytes_up") if name in sums}
        shares = {n: sums.get(part, 0.0) / sums[whole] for n, (part, whole) in RATIOS.items() if sums.get(whole)}
        times = {name: value for name, value in sums.items() if name.startswith("seconds_")}
        values = means | shares | times | {"replies": len(accepted)}
        self._record(round_number, values)
        return values
