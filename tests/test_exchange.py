"""A round's messages: who is awaited, for how long, and what becomes of those who come late."""

import time

import pytest
from flwr.app import Error, Message, MessageType, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from sofed_flwr import exchange
from sofed_flwr.exchange import Exchange


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, _inside_a_run: None) -> None:
    monkeypatch.setattr(exchange, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(exchange, "PRESENCE_SECONDS", 0.05)


class Grid:
    """Five nodes, each answering when the test says so."""

    def __init__(self) -> None:
        self.connected = dict.fromkeys(range(1, 6), "at noon")
        self.delivered: dict[int, Message] = {}
        self.refused: set[int] = set()
        self._replies: dict[str, Message] = {}

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, last_activated_at=since) for node, since in self.connected.items()]

    def push_messages(self, messages: list[Message]) -> list[str | None]:
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"{message.metadata.group_id}/{node}"
            self.delivered[node] = message
        return [m.metadata.message_id if m.metadata.dst_node_id not in self.refused else None for m in messages]

    def answer(self, node: int, error: bool = False) -> None:
        content = Error(code=2, reason="broken") if error else RecordDict({"counts": MetricRecord({"a": 1})})
        self._replies[self.delivered[node].metadata.message_id] = Message(content, reply_to=self.delivered[node])

    def pull_messages(self, names: list[str]) -> list[Message]:
        return [self._replies.pop(name) for name in names if name in self._replies]


def tasks(round_number: int, ttl: float | None = None) -> list[Message]:
    return [
        Message(RecordDict(), dst_node_id=node, message_type=MessageType.TRAIN, group_id=str(round_number), ttl=ttl)
        for node in range(1, 6)
    ]


class Answering(Grid):
    """Nodes that answer at once, as listed per round; a minus sign means an error."""

    def __init__(self, *rounds: list[int]) -> None:
        super().__init__()
        self.plan = iter(rounds)

    def push_messages(self, messages: list[Message]) -> list[str | None]:
        names = super().push_messages(messages)
        for node in next(self.plan):
            self.answer(abs(node), error=node < 0)
        return names


def nodes(replies: list[Message]) -> list[int]:
    return sorted(int(reply.metadata.reply_to_message_id.split("/")[1]) for reply in replies)


def test_a_round_ends_with_the_last_reply_long_before_its_deadline() -> None:
    began = time.monotonic()
    talk = Exchange(Answering([1, 2, -3, 4, 5]), enough=None)
    assert nodes(talk.send_and_receive(tasks(1), timeout=60)) == [1, 2, 3, 4, 5]
    assert talk.unanswered == {}
    assert time.monotonic() - began < 15


def test_enough_replies_end_a_round_and_errors_are_not_among_them() -> None:
    talk = Exchange(Answering([1, -2, 3, 4]), enough=3)
    assert nodes(talk.send_and_receive(tasks(1), timeout=60)) == [1, 2, 3, 4]
    assert talk.unanswered == {"1/5": "3 replies were enough"}


def test_a_straggler_costs_the_deadline_and_its_reply_is_counted_when_it_comes_and_not_used() -> None:
    """Fault 17: node 2 sleeps through round 1, answers it in round 2, and takes part in round 3."""
    grid = Answering([1, 3, 4, 5], [1, 3, 4, 5], [1, 2, 3, 4, 5])
    talk = Exchange(grid, enough=None)
    began = time.monotonic()
    assert nodes(talk.send_and_receive(tasks(1), timeout=1)) == [1, 3, 4, 5]
    assert 1 <= time.monotonic() - began < 4
    assert talk.unanswered == {"1/2": "no reply within 1 s"}
    grid.answer(2)
    assert nodes(talk.send_and_receive(tasks(2), timeout=1)) == [1, 3, 4, 5]
    assert (talk.late(), talk.late()) == (["1/2"], [])
    assert nodes(talk.send_and_receive(tasks(3), timeout=1)) == [1, 2, 3, 4, 5]


def test_flower_saying_first_that_time_is_up_adds_nothing_and_is_no_late_reply_either() -> None:
    """A message lives as long as its round: which clock is asked first is chance, and the reason must not be."""

    class Expiring(Answering):
        def pull_messages(self, names: list[str]) -> list[Message]:
            metadata = self.delivered[2].metadata
            if time.time() > metadata.created_at + metadata.ttl and metadata.message_id in names:
                self.answer(2, error=True)
            return super().pull_messages(names)

    talk = Exchange(Expiring([1, 3, 4, 5], [1, 2, 3, 4, 5]), enough=None)
    assert nodes(talk.send_and_receive(tasks(1, ttl=0.8), timeout=1)) == [1, 3, 4, 5]
    assert talk.unanswered == {"1/2": "no reply within 1 s"}
    assert nodes(talk.send_and_receive(tasks(2, ttl=0.8), timeout=1)) == [1, 2, 3, 4, 5]
    assert talk.late() == []


def test_a_device_that_restarted_is_not_awaited_because_its_message_is_gone() -> None:
    """Fault 3: Flower delivers a message once, so without this the round would last until its deadline."""
    grid = Answering([1, 2, 3, 4])
    talk = Exchange(grid, enough=None)

    class Restarting(dict[int, str]):
        def items(self):  # type: ignore[no-untyped-def]
            self.looks = getattr(self, "looks", 0) + 1
            return (self | {5: "at one"}).items() if self.looks > 2 else super().items()

    grid.connected = Restarting(grid.connected)
    began = time.monotonic()
    assert nodes(talk.send_and_receive(tasks(1), timeout=60)) == [1, 2, 3, 4]
    assert talk.unanswered == {"1/5": "restarted during the round"}
    assert time.monotonic() - began < 15


def test_a_message_that_cannot_be_sent_is_not_awaited() -> None:
    grid = Answering([1, 2, 3, 4])
    grid.refused = {5}
    talk = Exchange(grid, enough=None)
    assert nodes(talk.send_and_receive(tasks(1), timeout=60)) == [1, 2, 3, 4]
    assert talk.unanswered == {"1/5": "could not be sent to"}
