"""Replies that never travelled, for tests of what a strategy or a server makes of updates."""

from collections.abc import Mapping, Sequence

from flwr.app import Message, MessageType, Metadata, RecordDict
from flwr.app.message import make_message

from sofed_flwr.core.records import State, Update
from sofed_flwr.server.rounds import Server
from sofed_flwr.strategies.inner import InnerStrategy


def reply_of(device: int) -> Message:
    """Outside a running app Flower makes messages from complete metadata only."""
    metadata = Metadata(
        run_id=0,
        message_id="",
        src_node_id=device,
        dst_node_id=0,
        reply_to_message_id="",
        group_id="",
        created_at=0.0,
        ttl=1.0,
        message_type=MessageType.TRAIN,
    )
    return make_message(metadata, RecordDict())


def combined(strategy: InnerStrategy, updates: Sequence[Update], current: State) -> State:
    """What a strategy makes of updates that the gate accepted."""
    return strategy.aggregate({update.device: reply_of(update.device) for update in updates}, updates, current)


def aggregate(
    server: Server, round_number: int, updates: Sequence[Update], failures: Mapping[int, str] | None = None
) -> dict[str, float]:
    """One round of a server whose devices sent these updates."""

    def combine(accepted: Sequence[Update]) -> State:
        return combined(server.strategy, accepted, server.shared)

    return server.aggregate(round_number, updates, failures or {}, combine)
