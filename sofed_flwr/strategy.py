"""SOFed as a Flower strategy: tasks out, replies in, the server decides.

Flower's loop is used as it is; cadence, checkpoints and logs hang on `evaluate_fn`. Flower counts rounds from 1 at
every start, so a resumed run adds the rounds it has behind it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from sofed_flwr import rng
from sofed_flwr.contracts import Update
from sofed_flwr.exchange import Exchange
from sofed_flwr.flower import Task, pack_model, pack_task, unpack_update
from sofed_flwr.node_directory import NodeDirectory
from sofed_flwr.server import Server


@dataclass(frozen=True)
class Rules:
    """Who takes part in a round, and how long it lasts; `config.yaml`, section federation, says what each means."""

    clients: int
    everyone: float
    wait: float
    ask: int | None
    enough: int | None
    deadline: float


class SofedStrategy(Strategy):
    """Whatever is wrong with a reply, or with a device, costs that device's part in that round and nothing else."""

    def __init__(self, server: Server, grid: Grid, config: str, seed: int, rules: Rules) -> None:
        self.server = server
        self.config = config
        self.seed = seed
        self.rules = rules
        self._behind = max(server.committed, 0)
        self._directory = NodeDirectory(grid, range(rules.clients), server.quorum)
        self._exchange = Exchange(grid, rules.enough)
        self._sent: dict[int, Message] = {}
        self._asked: dict[str, int] = {}

    def run(self) -> None:
        """All rounds that are left."""
        self.start(
            cast(Grid, self._exchange),  # the loop asks no more of a grid than to send and receive
            initial_arrays=pack_model(self.server.shared),
            num_rounds=self.server.rounds - self._behind,
            timeout=self.rules.deadline,
            evaluate_fn=self._close,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One task per device; it lives until the deadline, so a straggler never works on a round gone by."""
        round_number = self._behind + server_round
        here = self._directory.gather(self.rules.everyone if server_round == 1 else 0.0, self.rules.wait)
        self._sent = {
            device: pack_task(
                Task(self.config, self.server.run, round_number, device), arrays, here[device], self.rules.deadline
            )
            for device in self._chosen(sorted(here), round_number)
        }
        return list(self._sent.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode what can be decoded, name what cannot, and let the server aggregate."""
        round_number = self._behind + server_round
        updates, failures = self._read(replies)
        for message in self._exchange.late():
            self.server.note_late(round_number, self._asked.pop(message))
        values = self.server.aggregate(round_number, updates, failures)
        return pack_model(self.server.shared), MetricRecord({**values})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Devices have no labels: there is nothing to evaluate on them."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """See `configure_evaluate`."""
        return None

    def summary(self) -> None:
        """The server keeps its own diary."""

    def _close(self, server_round: int, _: ArrayRecord) -> MetricRecord | None:
        return MetricRecord({**self.server.close_round(self._behind + server_round)})

    def _chosen(self, here: list[int], round_number: int) -> list[int]:
        """`ask` of the devices that are here, the same ones whenever this round is repeated with the same devices."""
        if self.rules.ask is None or self.rules.ask >= len(here):
            return here
        generator = rng.generator(self.seed, rng.SERVER, round_number, "devices asked")
        drawn = torch.randperm(len(here), generator=generator)[: self.rules.ask]
        return [here[position] for position in drawn.sort().values.tolist()]

    def _read(self, replies: Iterable[Message]) -> tuple[list[Update], dict[int, str]]:
        """Updates, and reasons by device for replies that are none, missing ones included.

        A reply belongs to the task it answers: errors made on the way do not carry their device's node id, and no
        device says of itself which one it is.
        """
        self._asked |= {message.metadata.message_id: device for device, message in self._sent.items()}
        failures = {self._asked[message]: reason for message, reason in self._exchange.unanswered.items()}
        updates: list[Update] = []
        for reply in replies:
            device = self._asked.pop(reply.metadata.reply_to_message_id)
            try:
                updates.append(unpack_update(reply, device, self.server.shared))
            except ValueError as error:
                failures[device] = str(error)
        return updates, failures
