"""One participant: restore, take the global model, train a round, persist, answer.

A device starts a new process for every message and may lose power at any moment, so everything it must remember is one
generation on disk: buffer, stream cursor, and what its method keeps to itself. A generation says which run and round it
follows. When the server repeats a round, because it crashed before committing it, the device goes back to the
generation before that round, so that a resumed run is the run that was interrupted, bit for bit. A generation that bit
rot has hit is used without the images, or without the method's memory, that it cost; a disk that takes no new one costs
the memory of the round, not the round.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from sofed_flwr import rng
from sofed_flwr.buffer import Buffer
from sofed_flwr.contracts import State, Update
from sofed_flwr.prefixes import over, under
from sofed_flwr.store import Generation, Store
from sofed_flwr.stream import Stream
from sofed_flwr.tensor_file import Parts
from sofed_flwr.trainer import FEWEST_IMAGES, Plan, Trainer, Watcher

PARTS = Parts(rows="buffer.", spare="method.")
"""What a device can lose: single images, each with score and age, and the target, which the global model replaces."""

log = logging.getLogger(__name__)


class DeviceError(RuntimeError):
    """Why a device has no update to send: a text for the server, so it holds no path, no name and no data."""


@dataclass(frozen=True)
class Identity:
    """Who trains, for which run (one name across resumes), with which seed."""

    device: int
    run: str
    seed: int


class Device:
    """Owns a stream, a buffer and a store; `segments` per round, None for one pass over what the stream has then.

    `learning_rate` depends on the round's number; `watchers` are for single rounds.
    """

    def __init__(
        self,
        identity: Identity,
        stream: Stream,
        buffer: Buffer,
        trainer: Trainer,
        store: Store,
        segments: int | None,
        learning_rate: Callable[[int], float],
        watchers: Mapping[int, Watcher],
    ) -> None:
        self.identity = identity
        self.stream = stream
        self.buffer = buffer
        self.trainer = trainer
        self.store = store
        self.segments = segments
        self.learning_rate = learning_rate
        self.watchers = watchers

    def train_round(self, round_number: int, shared: State) -> Update:
        """One round of Algorithm 1 on this device."""
        held = self._generation_before(round_number)
        self._restore(held, shared)
        draw = partial(rng.generator, self.identity.seed, self.identity.device, round_number)
        watcher = self.watchers.get(round_number)
        segments = self.segments or max(1, self.stream.waiting() // self.buffer.capacity)
        plan = Plan(segments, self.learning_rate(round_number), draw("select"), draw("views"), watcher)
        metrics = self.trainer.train(self.stream, self.buffer, plan)
        try:
            if watcher:
                watcher.save()
            self._persist(round_number, 0 if held is None else held.number + 1)
        except OSError as error:
            log.warning("round %d is not saved (%s); the next one starts from the state before it", round_number, error)
            metrics["unsaved"] = 1
        if not metrics["steps"]:
            raise DeviceError(f"the source has given {len(self.buffer)} images so far, training needs {FEWEST_IMAGES}")
        return Update(self.identity.device, round_number, self.trainer.method.shared_state(), metrics)

    def _generation_before(self, round_number: int) -> Generation | None:
        """The newest state that this round may follow: any of another run, or an earlier round of this one."""
        oldest = None
        for generation in self.store.generations():
            if generation.meta["run"] != self.identity.run or generation.meta["round"] < round_number:
                return generation
            oldest = generation
        if oldest is not None:
            log.warning(
                "no state from before round %d is left; using that of round %d", round_number, oldest.meta["round"]
            )
        return oldest

    def _restore(self, held: Generation | None, shared: State) -> None:
        """First start, next round of a run, or first round of another run, which keeps images but not the old model."""
        if held is None:
            self.trainer.method.take_global(shared, local=None)
            return
        self.buffer.load_state_dict(under("buffer.", held.tensors))
        self.stream.cursor = held.meta["cursor"]
        same_run = held.meta["run"] == self.identity.run
        kept = under("method.", held.tensors) if same_run else {}
        self.trainer.method.take_global(shared, kept or None)
        self.buffer.scores = self.trainer.policy.carry_over(self.buffer.scores, same_run)

    def _persist(self, round_number: int, number: int) -> None:
        tensors = over("buffer.", self.buffer.state_dict()) | over("method.", self.trainer.method.local_state())
        meta = {"run": self.identity.run, "round": round_number, "cursor": self.stream.cursor}
        self.store.save(Generation(number, tensors, meta), PARTS)
