"""LocalTrain of Algorithm 1: segment by segment, score, select, one step on the whole buffer.

Segment, buffer and batch have the same size N. The optimizer lives for one round: its momentum belongs to a local model
that the next global model replaces.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from sofed_flwr.core.records import Pool, Selection
from sofed_flwr.device.buffer import Buffer
from sofed_flwr.device.optimizer import SGD
from sofed_flwr.device.score_trace import ScoreTrace
from sofed_flwr.device.stream import Stream
from sofed_flwr.methods.base import Method
from sofed_flwr.policies.base import Policy
from sofed_flwr.sources.base import Portion

FEWEST_IMAGES = 2
"""BatchNorm has no variance of a single image."""

log = logging.getLogger(__name__)


@dataclass
class Counts:
    """Counts of a round, as sums, so that the server can add them over devices before it computes ratios."""

    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to a sum."""
        start = perf_counter()
        yield
        self.sums[name] += perf_counter() - start

    def read(self, portion: Portion, wanted: int) -> None:
        """Count the faults of a segment; faults that never happen have no entry."""
        faults = {
            "starved": int(len(portion.images) < wanted),
            "unreadable": portion.unreadable,
            "rejected": portion.rejected,
        }
        for name, count in faults.items():
            if count:
                self.sums[name] += count

    def selected(self, held: int, new: int, selection: Selection) -> None:
        """Count one selection: the pool was `held` buffer entries, then `new` ones."""
        kept_new = int((selection.keep >= held).sum())
        self.sums["seen"] += new
        self.sums["discarded"] += new - kept_new
        self.sums["held"] += held
        self.sums["rescored"] += selection.rescored


@dataclass(frozen=True)
class Plan:
    """One round of one device: segments of the stream, learning rate, generators, and what observes the scores."""

    segments: int
    lr: float
    selecting: torch.Generator
    viewing: torch.Generator
    watcher: ScoreTrace | None = None


class Trainer:
    """Trains a method on what a policy keeps."""

    def __init__(self, method: Method, policy: Policy, momentum: float, weight_decay: float) -> None:
        self.method = method
        self.policy = policy
        self._sgd = partial(SGD, momentum=momentum, weight_decay=weight_decay)

    def train(self, stream: Stream, buffer: Buffer, plan: Plan) -> dict[str, float]:
        """Consume the plan's segments of the stream; returns the round's counts and, after any step, the mean loss.

        A segment may be short, or empty while the source has nothing new; then only the buffer is used.
        """
        counts = Counts()
        trainable = [parameter for parameter in self.method.parameters() if parameter.requires_grad]
        optimizer = self._sgd(trainable, lr=plan.lr)
        self.method.train()
        losses = []
        for _ in range(plan.segments):
            portion = stream.next(buffer.capacity)
            counts.read(portion, wanted=buffer.capacity)
            if len(portion.images):
                with counts.timed("seconds_scoring"):
                    pool, selection = self._update_buffer(buffer, portion.images, plan.selecting, counts)
                if plan.watcher:
                    plan.watcher.selected(pool, selection, self.method)
            if len(buffer) >= FEWEST_IMAGES:
                with counts.timed("seconds_training"):
                    losses.append(self._step(optimizer, buffer.images, plan.viewing))
        _warn(counts.sums, plan.segments)
        mean = {"loss": sum(losses) / len(losses)} if losses else {}
        return {**mean, "steps": len(losses), **counts.sums}

    def _update_buffer(
        self, buffer: Buffer, segment: Tensor, selecting: torch.Generator, counts: Counts
    ) -> tuple[Pool, Selection]:
        pool = buffer.pool(segment)
        capacity = min(buffer.capacity, len(pool))
        selection = self.policy.select(pool, capacity, self.method, selecting)
        counts.selected(len(buffer), len(segment), selection)
        buffer.keep(pool, selection)
        return pool, selection

    def _step(self, optimizer: SGD, images: Tensor, viewing: torch.Generator) -> float:
        optimizer.zero_grad()
        loss = 0.0
        for term in self.method.loss_terms(images, viewing):
            term.backward()  # type: ignore[no-untyped-call]
            loss += float(term.detach())
        optimizer.step()
        self.method.after_step()
        return loss


def _warn(sums: Mapping[str, float], segments: int) -> None:
    """One line per round about the source; numbers only, since a file's name may describe its content."""
    starved, unreadable, rejected = (int(sums.get(name, 0)) for name in ("starved", "unreadable", "rejected"))
    if starved or unreadable or rejected:
        log.warning(
            "%d of %d segments had fewer new images than wanted and were filled up from the buffer; "
            "left out: %d unreadable images, %d blank or repeated ones",
            *(starved, segments, unreadable, rejected),
        )
