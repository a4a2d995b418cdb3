"""SOFed's FedAvg, as Flower users know it: `configure_train` sends tasks, `aggregate_train` combines what came back.

Three things differ from Flower's own. Devices are sampled by device number and seed, since node ids are random. Replies
are decoded and pass the gate before any arithmetic. The arithmetic is that of any Flower strategy (`strategies/`),
which gets the accepted replies. Flower's loop is unchanged: evaluation, checkpoints and logs happen in `evaluate_fn`.
It counts rounds from 1 at every start, so a resumed run adds the rounds that are committed.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from sofed_flwr.build import build_codec
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core import rng
from sofed_flwr.core.records import State, Update
from sofed_flwr.flower.messages import Task, pack_model, pack_task, unpack_update
from sofed_flwr.flower.node_registry import NodeRegistry
from sofed_flwr.flower.round_grid import RoundGrid
from sofed_flwr.server.rounds import Server


class SofedFedAvg(FedAvg):
    """FedAvg over the online encoder and the predictor, and nothing else (Algorithm 1, W^g ← Σ W^k / K).

    A fault of a reply or a device costs that device's part in that round only.
    """

    def __init__(self, server: Server, grid: Grid, config: RunConfig) -> None:
        super().__init__()
        self.fraction_evaluate = 0.0  # devices have no labels; given to the constructor it would be a warning
        self.server = server
        self.inner = server.strategy
        self.codec = build_codec(config)
        self.config = config.to_yaml()
        self.seed = config.seed
        self.rules = config.federation
        self.registry = NodeRegistry(grid, range(config.clients), server.quorum)
        self.grid = RoundGrid(grid, self.rules.stop_at_replies, self.registry.meet, self._note_arrived)
        self._rounds_before = max(server.committed, 0)
        self._round = self._rounds_before
        self._sent: dict[int, Message] = {}
        self._asked: dict[str, int] = {}

    def run(self) -> None:
        """All rounds that are left."""
        self.start(
            cast(Grid, self.grid),
            initial_arrays=pack_model(self.server.shared),
            num_rounds=self.server.rounds - self._rounds_before,
            timeout=self.rules.round_deadline_s,
            evaluate_fn=self._close,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One task per device; it expires at the deadline, so a slow device never works on a round that has ended."""
        self._round = self._rounds_before + server_round
        rules = self.rules
        here = self.registry.gather(rules.first_round_wait_s if server_round == 1 else 0.0, rules.quorum_wait_s)
        self._sent = {
            device: pack_task(
                Task(self.config, self.server.run, self._round, device), arrays, here[device], rules.round_deadline_s
            )
            for device in self._sampled(sorted(here))
        }
        self.server.records.write(self._round, {"asked": len(self._sent)})
        return list(self._sent.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode the replies, drop those that the gate refuses, and hand the others to the inner Flower strategy."""
        decoded, failures = self._decoded(replies)
        for message in self.grid.late():
            self.server.records.write(self._round, {"late": 1}, self._asked.pop(message))

        def combine(accepted: Sequence[Update]) -> State:
            by_device = {device: reply for device, (reply, _) in decoded.items()}
            return self.inner.aggregate(by_device, accepted, self.server.shared)

        updates = [update for _, update in decoded.values()]
        values = self.server.aggregate(self._round, updates, failures, combine)
        return pack_model(self.server.shared), MetricRecord({**values})

    def summary(self) -> None:
        """The server keeps its own metrics log."""

    def _note_arrived(self, replies: int) -> None:
        self.server.records.write(self._round, {"arrived": replies})

    def _close(self, server_round: int, _: ArrayRecord) -> MetricRecord | None:
        return MetricRecord({**self.server.close_round(self._rounds_before + server_round)})

    def _sampled(self, here: list[int]) -> list[int]:
        """`sample` of the connected devices; the same ones if this round is repeated with the same devices."""
        count = self.rules.sample
        if count is None or count >= len(here):
            return here
        generator = rng.generator(self.seed, rng.SERVER, self._round, "devices asked")
        drawn = torch.randperm(len(here), generator=generator)[:count]
        return [here[position] for position in drawn.sort().values.tolist()]

    def _decoded(self, replies: Iterable[Message]) -> tuple[dict[int, tuple[Message, Update]], dict[int, str]]:
        """Replies with their updates, and reasons for replies that have none, missing ones included, by device.

        A reply belongs to the task it answers: errors on the way carry no node id of their device, and a device's
        own claim is not used.
        """
        self._asked |= {message.metadata.message_id: device for device, message in self._sent.items()}
        failures = {self._asked[message]: reason for message, reason in self.grid.unanswered.items()}
        decoded: dict[int, tuple[Message, Update]] = {}
        for reply in replies:
            device = self._asked.pop(reply.metadata.reply_to_message_id)
            try:
                decoded[device] = (reply, unpack_update(reply, device, self.server.shared, self.codec))
            except ValueError as error:
                failures[device] = str(error)
        return decoded, failures
