"""One participant: restore, take the global model, train a round, persist, answer.

A device starts a new process for every message and may lose power at any moment, so everything it must remember is one
generation on disk: buffer, stream cursor, and what its method and its codec keep to themselves. A generation says which
run and round it follows. When the server repeats a round, because it crashed before committing it, the device goes back
to the generation before that round, so that a resumed run is the run that was interrupted, bit for bit. A generation
with damaged entries is used without those images, or without the method's or the codec's memory. If the disk takes no
new generation, the round's update is still sent. A round that diverged is not committed and has no update: the next one
starts from the generation before it, and reads the same images again.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import isfinite

from sofed_flwr.codecs.base import Codec
from sofed_flwr.core import rng
from sofed_flwr.core.errors import DeviceError
from sofed_flwr.core.records import State, Update
from sofed_flwr.core.state_dicts import not_finite, over, under, unlike
from sofed_flwr.device.buffer import Buffer
from sofed_flwr.device.health import fault
from sofed_flwr.device.score_trace import ScoreTrace
from sofed_flwr.device.state_lock import locked_state
from sofed_flwr.device.stream import Stream
from sofed_flwr.device.trainer import FEWEST_IMAGES, Plan, Trainer
from sofed_flwr.storage.generations import Generation, Store, following
from sofed_flwr.storage.tensor_file import Parts

PARTS = Parts(rows="buffer.", spare=("method.", "codec."))
"""What a device can lose to damage: single images, each with score and age; the target, which the global model
replaces; and what earlier uploads left out."""

log = logging.getLogger(__name__)


@dataclass
class Device:
    """Owns a stream, a buffer and a store; `segments` per round, None for one pass over what the stream has then.

    `run` has the same name after a resume. `learning_rate` depends on the round's number; `watchers` are for single
    rounds.
    """

    number: int
    run: str
    seed: int
    stream: Stream
    buffer: Buffer
    trainer: Trainer
    codec: Codec
    store: Store
    segments: int | None
    learning_rate: Callable[[int], float]
    watchers: Mapping[int, ScoreTrace]

    def train_round(self, round_number: int, shared: State) -> Update:
        """One round of Algorithm 1 on this device; the update holds the shared model as the codec encoded it."""
        if (name := not_finite(shared)) is not None:
            raise DeviceError(f"the global model of round {round_number} cannot be used: {name} is not finite")
        with locked_state(self.store.directory, {"run": self.run, "round": round_number}):
            return self._train_alone(round_number, shared)

    def _train_alone(self, round_number: int, shared: State) -> Update:
        held = self._generation_before(round_number)
        memory = self._restore(held, shared)
        draw = partial(rng.generator, self.seed, self.number, round_number)
        watcher = self.watchers.get(round_number)
        segments = self.segments or max(1, self.stream.waiting() // self.buffer.capacity)
        plan = Plan(segments, self.learning_rate(round_number), draw("select"), draw("views"), watcher)
        metrics = self.trainer.train(self.stream, self.buffer, plan)
        state, kept = self.trainer.method.shared_state(), self.trainer.method.local_state()
        loss = metrics.get("loss", 0.0)
        diverged = f"the loss is {loss}" if not isfinite(loss) else fault(state, shared) or fault(kept, shared)
        self._refuse_diverged(round_number, diverged)
        # a round without a step sends nothing, and changes nothing that is still to be sent
        payload, memory = self.codec.encode(state, shared, memory) if metrics["steps"] else (state, memory)
        self._refuse_diverged(round_number, fault(memory, shared))
        try:
            if watcher:
                watcher.save()
            self._persist(round_number, following(held), over("method.", kept) | over("codec.", memory))
        except OSError as error:
            log.warning("round %d is not saved (%s); the next one starts from the state before it", round_number, error)
            metrics["unsaved"] = 1
        if not metrics["steps"]:
            raise DeviceError(f"the source has given {len(self.buffer)} images so far, training needs {FEWEST_IMAGES}")
        return Update(self.number, round_number, payload, metrics)

    def _generation_before(self, round_number: int) -> Generation | None:
        """The newest state that this round may follow: any of another run, or an earlier round of this one."""
        oldest = None
        own = filter(self._is_own, self.store.generations())
        for generation in own:
            if generation.meta["run"] != self.run:
                if any(earlier.meta["run"] == self.run for earlier in own):
                    log.warning("another run used this device's state since; the method starts from the global model")
                return generation
            if generation.meta["round"] < round_number:
                return generation
            oldest = generation
        if oldest is not None:
            log.warning(
                "no state from before round %d is left; using that of round %d", round_number, oldest.meta["round"]
            )
        return oldest

    def _is_own(self, generation: Generation) -> bool:
        """A checksum does not show which device wrote a file; early versions wrote no device number."""
        meta, device = generation.meta, self.number
        own = isinstance(meta.get("run"), str) and isinstance(meta.get("round"), int)
        if not own or meta.get("device", device) != device:
            log.warning("generation %d is not a state of this device and is not used", generation.number)
            return False
        return True

    def _restore(self, held: Generation | None, shared: State) -> State:
        """First start, next round of a run, or first round of another run, which keeps images but not the old model.

        Returns the codec's memory.
        """
        memory = self.codec.initial_memory(shared)
        if held is None:
            self.trainer.method.take_global(shared, local=None)
            return memory
        try:
            self.buffer.load_state_dict(under("buffer.", held.tensors))
        except ValueError as error:
            log.warning("the buffer cannot be used (%s); this device starts without images", error)
        self.stream.cursor = held.meta.get("cursor")
        kept = self._kept("method", held, self.trainer.method.local_state(), shared)
        self.trainer.method.take_global(shared, kept or None)
        # scores are of the model that computed them, and of its target
        self.buffer.scores = self.trainer.policy.carry_over(self.buffer.scores, same_run=kept is not None)
        return self._kept("codec", held, memory, shared) or memory

    def _kept(self, part: str, held: Generation, expected: State, shared: State) -> State | None:
        """The state that the method or the codec kept in this run; None if there is none or it cannot be used."""
        if held.meta["run"] != self.run:
            return None
        kept = under(f"{part}.", held.tensors)
        if expected and not kept:
            return None  # the store has logged what was damaged
        reason = unlike(kept, expected, "its own") or fault(kept, shared)
        if reason is None:
            return kept
        log.warning("what the %s kept cannot be used (%s); it starts again", part, reason)
        return None

    def _refuse_diverged(self, round_number: int, reason: str | None) -> None:
        if reason:
            text = f"diverged in round {round_number}: {reason}; this device keeps its state from before it"
            log.warning(text)
            raise DeviceError(text)

    def _persist(self, round_number: int, number: int, kept: State) -> None:
        tensors = over("buffer.", self.buffer.state_dict()) | kept
        own = {"run": self.run, "round": round_number, "device": self.number}
        self.store.save(Generation(number, tensors, own | {"cursor": self.stream.cursor}), PARTS)
