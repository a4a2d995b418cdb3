"""LocalTrain of Algorithm 1: segment by segment, score, select, one step on the whole buffer.

Segment, buffer and batch have the same size N. The optimizer lives for one round: its momentum belongs to a local model
that the next global model replaces.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from sofed_flwr.buffer import Buffer
from sofed_flwr.contracts import Pool, Selection
from sofed_flwr.methods.base import Method
from sofed_flwr.policies.base import Policy, Scorer
from sofed_flwr.stream import Stream


@dataclass
class Counts:
    """What happened in a round, as sums, so that the server can add devices up before it takes ratios."""

    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds of the block to a sum."""
        start = perf_counter()
        yield
        self.sums[name] += perf_counter() - start

    def selected(self, held: int, new: int, selection: Selection) -> None:
        """Count one selection: the pool was `held` buffer entries, then `new` ones."""
        kept_new = int((selection.keep >= held).sum())
        self.sums["seen"] += new
        self.sums["discarded"] += new - kept_new
        self.sums["held"] += held
        self.sums["rescored"] += selection.rescored


class Watcher(Protocol):
    """Looks on while a round trains, and changes nothing."""

    def selected(self, pool: Pool, selection: Selection, scorer: Scorer) -> None:
        """Called after every selection, before the step."""

    def save(self) -> None:
        """Called when the round is over."""


@dataclass(frozen=True)
class Plan:
    """One round of one device: how much of the stream, how fast to learn, with which randomness, watched by whom."""

    segments: int
    lr: float
    selecting: torch.Generator
    viewing: torch.Generator
    watcher: Watcher | None = None


class Trainer:
    """Trains a method on what a policy keeps."""

    def __init__(self, method: Method, policy: Policy, momentum: float, weight_decay: float) -> None:
        self.method = method
        self.policy = policy
        self._sgd = partial(torch.optim.SGD, momentum=momentum, weight_decay=weight_decay)

    def train(self, stream: Stream, buffer: Buffer, plan: Plan) -> dict[str, float]:
        """Consume the plan's segments of the stream; returns the round's counts and the mean loss."""
        counts = Counts()
        trainable = [parameter for parameter in self.method.parameters() if parameter.requires_grad]
        optimizer = self._sgd(trainable, lr=plan.lr)
        self.method.train()
        losses = []
        for _ in range(plan.segments):
            segment = stream.next(buffer.capacity)
            with counts.timed("seconds_scoring"):
                pool, selection = self._update_buffer(buffer, segment, plan.selecting, counts)
            if plan.watcher:
                plan.watcher.selected(pool, selection, self.method)
            with counts.timed("seconds_training"):
                losses.append(self._step(optimizer, buffer.images, plan.viewing))
        return {"loss": sum(losses) / plan.segments, "steps": plan.segments, **counts.sums}

    def _update_buffer(
        self, buffer: Buffer, segment: Tensor, selecting: torch.Generator, counts: Counts
    ) -> tuple[Pool, Selection]:
        pool = buffer.pool(segment)
        capacity = min(buffer.capacity, len(pool))
        selection = self.policy.select(pool, capacity, self.method, selecting)
        counts.selected(len(buffer), len(segment), selection)
        buffer.keep(pool, selection)
        return pool, selection

    def _step(self, optimizer: torch.optim.SGD, images: Tensor, viewing: torch.Generator) -> float:
        optimizer.zero_grad()
        loss = 0.0
        for term in self.method.loss_terms(images, viewing):
            term.backward()  # type: ignore[no-untyped-call]
            loss += float(term.detach())
        optimizer.step()
        self.method.after_step()
        return loss
