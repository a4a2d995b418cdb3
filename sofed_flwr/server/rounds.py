"""The server's half of Algorithm 1, without the transport: aggregate a round, evaluate, commit.

A round is committed when its checkpoint is on disk; a server that is killed before continues from the round before.
`close_round` of a committed round changes nothing. A disk that is full or read-only does not end a run that may have
taken days: rounds continue in memory, and the next commit covers them all. Only a model whose release cannot be written
into the privacy ledger is not sent: that round fails. A run succeeds if at least one round counted and its files exist;
otherwise it ends in a `RunStoppedError` with the reason.
"""

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass
from time import perf_counter
from typing import Any

from sofed_flwr.config.instantiate import Component
from sofed_flwr.config.sections import Federation
from sofed_flwr.core.errors import RunStoppedError
from sofed_flwr.core.records import Release, Split, State, Update
from sofed_flwr.core.redaction import redacted
from sofed_flwr.core.state_dicts import not_finite
from sofed_flwr.encoder import save_encoder
from sofed_flwr.evaluation.collapse import alarm
from sofed_flwr.evaluation.suite import Suite
from sofed_flwr.methods.base import Method
from sofed_flwr.server.buffer_diagnostics import BufferDiagnostics
from sofed_flwr.server.gate import Gate, unusable
from sofed_flwr.server.records import Records
from sofed_flwr.server.summary import last_failure, of_encoder, summarise
from sofed_flwr.storage.metrics_log import read_rows
from sofed_flwr.storage.run_directory import Checkpoint, RunDirectory
from sofed_flwr.strategies.inner import InnerStrategy
from sofed_flwr.tracking.base import Tracker

REASONS_SHOWN = 10
"""Of a failed round, in one line; the metrics log has all."""

Combine = Callable[[Sequence[Update]], State]
"""Accepted updates, in order of device, so that sums round the same way every time -> the next global model."""

log = logging.getLogger(__name__)


@dataclass
class Server:
    """Holds the global model between rounds; `split` opens the dataset at the first evaluation.

    `start` is the last committed round; `pretrained` names the weights of the method, if those are not random.
    """

    directory: RunDirectory
    start: InitVar[Checkpoint | None]
    tracker: InitVar[Tracker]
    method: Method
    strategy: InnerStrategy
    suite: Suite
    split: Callable[[], Split]
    buffers: BufferDiagnostics
    rules: Federation
    rounds: int
    pretrained: Mapping[str, str] | None = None

    def __post_init__(self, start: Checkpoint | None, tracker: Tracker) -> None:
        start = start or Checkpoint(uuid.uuid4().hex, -1, self.method.shared_state(), pretrained=self.pretrained)
        self.run, self.shared, self.committed, self.counted = start.run, start.shared, start.round, start.counted
        self.pretrained = start.pretrained
        self.records = Records(self.directory.log, tracker)
        self.method.eval()
        self.strategy.load_state_dict(start.strategy)
        self.quorum = max(self.rules.quorum, self.strategy.min_replies)
        bounds = (self.rules.max_norm_ratio, self.rules.clip_norm_ratio)
        self.gate = Gate(*bounds, self.strategy.bounded, self.strategy.compares_directions)
        self.gate.load_state_dict(start.gate)
        self._closed, self._failed_in_a_row = self.committed, 0
        self._round_began = perf_counter()

    def aggregate(
        self, round_number: int, updates: Sequence[Update], failures: Mapping[int, str], combine: Combine
    ) -> dict[str, float]:
        """W ← `combine` of the updates that pass the gate; with too few of them W stays as it is."""
        verdict = self.gate.check(updates, self.shared, round_number)
        accepted, dropped = verdict.accepted, dict(failures) | verdict.dropped
        reasons = {device: redacted(reason) for device, reason in sorted(dropped.items())}
        for device, reason in reasons.items():
            self.records.warn(round_number, f"device {device} dropped", {"dropped": 1}, reason, device)
        for name, value, reason in verdict.remarks:
            self.records.warn(round_number, name, {name: value}, reason)
        if len(accepted) < self.rules.quorum or verdict.sound < self.strategy.min_replies:
            why = [f"device {device}: {reason}" for device, reason in reasons.items()]
            more = [f"and {len(why) - REASONS_SHOWN} more"] if len(why) > REASONS_SHOWN else []
            had = f"{len(accepted)} usable replies of {self.quorum} needed"
            return self._fail(round_number, f"had {had} ({'; '.join(why[:REASONS_SHOWN] + more) or 'no reply at all'})")
        before = self.strategy.state_dict()
        aggregate = combine(accepted)
        if (refusal := self._release(round_number, aggregate, len(accepted))) is not None:
            self.strategy.load_state_dict(before)
            return self._fail(round_number, refusal)
        self.shared, self.counted, self._failed_in_a_row = aggregate, self.counted + 1, 0
        self.gate.remember(verdict)
        self.records.write_privacy(round_number, self.directory.ledger.releases, self.strategy)
        return self.records.write_replies(round_number, accepted)

    def _release(self, round_number: int, model: State, replies: int) -> str | None:
        """Why the model must not be sent, or None: then its release is on disk, before any device can get the model."""
        if (fault := unusable(model) or not_finite(self.strategy.state_dict())) is not None:
            return f"has no usable aggregate of {replies} replies ({fault})"
        try:
            self.directory.ledger.write(Release(self.run, round_number, self.strategy.noise(replies)))
        except OSError as error:
            return f"released no model, the privacy ledger cannot be written ({error})"
        return None

    def close_round(self, round_number: int) -> dict[str, float]:
        """Evaluate if it is due, log, commit; then stop if the strategy allows no further round."""
        values = self._commit(round_number) if round_number > self.committed else {}
        reason = self.strategy.exhausted(self.directory.ledger.releases)
        if reason is not None and round_number < self.rounds:
            keep = f"resume with rounds={self.committed} to keep the encoder"
            remedy = keep if self.committed > 0 else "no round was made"
            raise RunStoppedError(f"stopped after round {round_number}: {reason}; {remedy}")
        return values

    def _commit(self, round_number: int) -> dict[str, float]:
        values = {}
        self.method.load(self.shared)
        self.records.write(round_number, self.buffers.measure(self.method.features))
        if self.suite.due(round_number, self.rounds):
            values = self.suite.run(self.method, self.method.features, self.split())
            self.records.write(round_number, values)
            self._raise_alarm(round_number, values)
        self._closed = round_number
        with self.records.despite_the_disk(round_number):
            self._save()
        now = perf_counter()
        self.records.write(round_number, {"seconds": now - self._round_began})
        self._round_began = now
        return values

    def _save(self) -> None:
        kept = (self.shared, self.strategy.state_dict(), self.gate.state_dict())
        releases = self.directory.ledger.of_run(self.run)
        self.directory.commit(Checkpoint(self.run, self._closed, *kept, self.counted, releases, self.pretrained))
        self.committed = self._closed

    def _raise_alarm(self, round_number: int, values: Mapping[str, float]) -> None:
        """A warning only: the user can resume with other settings."""
        rows = read_rows(self.directory.log.path)
        untrained = [row["value"] for row in rows if row["name"] == "feature_std" and row["round"] == 0]
        found = alarm(round_number, values.get("feature_std"), untrained[0] if untrained else None)
        if found is not None:
            self.records.warn(round_number, found.sentence, {found.name: 1}, found.reason)

    def finish(self, encoder: Component, facts: Mapping[str, Any], images: Mapping[str, Any] | None = None) -> None:
        """Write the encoder and the summary; `encoder` is the backbone's yaml, `facts` say what was trained.

        `images` describes the training images and goes into the encoder's file only.
        """
        self.records.close()
        if not self.counted:
            why = last_failure(read_rows(self.directory.log.path))
            raise RunStoppedError(f"none of {self._closed} rounds counted; the last {why}")
        origin = {"pretrained": dict(self.pretrained)} if self.pretrained else {}
        try:
            self._write_result(encoder, {**facts, **origin}, images or {})
        except OSError as error:
            how = f"when that is repaired, resume={self.directory.path} continues after round {max(self.committed, 0)}"
            raise RunStoppedError(f"the result cannot be written whole ({error}); {how}") from error

    def _write_result(self, encoder: Component, facts: Mapping[str, Any], images: Mapping[str, Any]) -> None:
        """The encoder first: it is saved even where the rest of the directory was deleted."""
        self.method.load(self.shared)
        self.directory.path.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # what the disk refused before, for the encoder's file to count as well
            self.directory.log.write(self._closed, {})
        results = of_encoder(summarise(read_rows(self.directory.log.path), facts))
        save_encoder(self.directory.encoder, self.method.backbone(), encoder, {**facts, **images, "results": results})
        if self.committed < self._closed:
            self._save()
        self.directory.log.write(self._closed, {})
        self.directory.write_summary(summarise(read_rows(self.directory.log.path), facts))

    def _fail(self, round_number: int, why: str) -> dict[str, float]:
        self._failed_in_a_row += 1
        text = f"round {round_number} {why}"
        log.warning("%s; the global model stays as it is", text)
        self.records.write(round_number, {"failed": 1}, reason=why)
        if self._failed_in_a_row >= self.rules.max_failed_rounds:
            raise RunStoppedError(f"{text}; {self._failed_in_a_row} failed rounds in a row")
        return {}
