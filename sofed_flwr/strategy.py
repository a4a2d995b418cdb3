"""SOFed as a Flower strategy: tasks out, replies in, the server decides.

Flower's loop is used as it is; cadence, checkpoints and logs hang on `evaluate_fn`. Flower counts rounds from 1 at
every start, so a resumed run adds the rounds it has behind it.
"""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from sofed_flwr.contracts import Update
from sofed_flwr.flower import NodeDirectory, Task, pack_state, pack_task, unpack_update
from sofed_flwr.server import Server


class SofedStrategy(Strategy):
    """Every device takes part in every round; whatever is wrong with a reply costs that reply alone."""

    def __init__(self, server: Server, config: str, clients: int, deadline: float, wait: float) -> None:
        self.server = server
        self.config = config
        self.clients = clients
        self.deadline = deadline
        self.wait = wait
        self._behind = max(server.committed, 0)
        self._directory = NodeDirectory()
        self._sent: dict[int, Message] = {}

    def run(self, grid: Grid) -> None:
        """All rounds that are left."""
        self.start(
            grid,
            initial_arrays=pack_state(self.server.shared),
            num_rounds=self.server.rounds - self._behind,
            timeout=self.deadline,
            evaluate_fn=self._close,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One task per device; it lives until the deadline, so a straggler never works on a round gone by."""
        nodes = self._directory.wait_for(grid, range(self.clients), self.wait)
        self._sent = {
            device: pack_task(
                Task(self.config, self.server.run, self._behind + server_round, device), arrays, node, self.deadline
            )
            for device, node in sorted(nodes.items())
        }
        return list(self._sent.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode what can be decoded, name what cannot, and let the server aggregate."""
        updates, failures = self._read(replies)
        values = self.server.aggregate(self._behind + server_round, updates, failures)
        return pack_state(self.server.shared), MetricRecord({**values})

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

    def _read(self, replies: Iterable[Message]) -> tuple[list[Update], dict[int, str]]:
        """Updates, and reasons by device for replies that are none, missing ones included.

        A reply belongs to the task it answers: errors made on the way do not carry their device's node id, and no
        device says of itself which one it is.
        """
        asked = {message.metadata.message_id: device for device, message in self._sent.items()}
        failures = dict.fromkeys(self._sent, f"no reply within {self.deadline:g} s")
        updates: list[Update] = []
        for reply in replies:
            device = asked[reply.metadata.reply_to_message_id]
            try:
                updates.append(unpack_update(reply, device, self.server.shared))
                failures.pop(device)
            except ValueError as error:
                failures[device] = str(error)
        return updates, failures
