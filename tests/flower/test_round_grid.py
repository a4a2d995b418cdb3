"""A round's messages: who is awaited, for how long, and what becomes of those who come late."""

import re
import time
from types import SimpleNamespace

import pytest
from flwr.app import Error, Message, MessageType, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import Message as Proto
from flwr.proto.message_pb2 import Metadata as Meta
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import (
    GetNodesResponse,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
)
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_ins_message
from flwr.supercore.inflatable.inflatable_object import get_object_id, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import validate_object_content
from flwr.superlink.grid.http_grid import HttpGrid

from sofed_flwr.flower import round_grid as exchange
from sofed_flwr.flower.round_grid import RoundGrid


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
    talk = RoundGrid(Answering([1, 2, -3, 4, 5]), stop_at_replies=None)
    assert nodes(talk.send_and_receive(tasks(1), timeout=60)) == [1, 2, 3, 4, 5]
    assert talk.unanswered == {}
    assert time.monotonic() - began < 15


def test_enough_replies_end_a_round_and_errors_are_not_among_them() -> None:
    talk = RoundGrid(Answering([1, -2, 3, 4]), stop_at_replies=3)
    assert nodes(talk.send_and_receive(tasks(1), timeout=60)) == [1, 2, 3, 4]
    assert talk.unanswered == {"1/5": "3 replies were enough"}


def test_a_straggler_costs_the_deadline_and_its_reply_is_counted_when_it_comes_and_not_used() -> None:
    """Node 2 sleeps through round 1, answers it in round 2, and takes part in round 3."""
    grid = Answering([1, 3, 4, 5], [1, 3, 4, 5], [1, 2, 3, 4, 5])
    talk = RoundGrid(grid, stop_at_replies=None)
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

    talk = RoundGrid(Expiring([1, 3, 4, 5], [1, 2, 3, 4, 5]), stop_at_replies=None)
    assert nodes(talk.send_and_receive(tasks(1, ttl=0.8), timeout=1)) == [1, 3, 4, 5]
    assert talk.unanswered == {"1/2": "no reply within 1 s"}
    assert nodes(talk.send_and_receive(tasks(2, ttl=0.8), timeout=1)) == [1, 2, 3, 4, 5]
    assert talk.late() == []


def test_a_device_that_restarted_is_not_awaited_because_its_message_is_gone() -> None:
    """Flower delivers a message once, so without this the round would last until its deadline."""

    class Restarting(Answering):
        """Device 5 connects again, under the same name, once its message is delivered."""

        def pull_messages(self, names: list[str]) -> list[Message]:
            self.connected[5] = "at one"
            return super().pull_messages(names)

    talk = RoundGrid(Restarting([1, 2, 3, 4]), stop_at_replies=None)
    began = time.monotonic()
    assert nodes(talk.send_and_receive(tasks(1), timeout=60)) == [1, 2, 3, 4]
    assert talk.unanswered == {"1/5": "restarted during the round"}
    assert time.monotonic() - began < 15


def test_a_message_that_cannot_be_sent_is_not_awaited() -> None:
    grid = Answering([1, 2, 3, 4])
    grid.refused = {5}
    talk = RoundGrid(grid, stop_at_replies=None)
    assert nodes(talk.send_and_receive(tasks(1), timeout=60)) == [1, 2, 3, 4]
    assert talk.unanswered == {"1/5": "could not be sent to"}


class Link:
    """A SuperLink's runtime API as Flower's own grid calls it, with replies as bytes that their senders chose."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}
        self.objects: dict[str, bytes] = {}

    def GetNodes(self, _: object) -> GetNodesResponse:  # noqa: N802
        return GetNodesResponse(nodes=[NodeInfo(node_id=node) for node in range(1, 6)])

    def PushMessages(self, request: PushAppMessagesRequest) -> PushAppMessagesResponse:  # noqa: N802
        for message in request.messages_list:
            self.asked[message.metadata.message_id] = message.metadata.dst_node_id
        return PushAppMessagesResponse(message_ids=[message.metadata.message_id for message in request.messages_list])

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        """Each reply once; whoever asks again hears that the message is unknown."""
        found = [(name, self.reply(self.asked.pop(name))) for name in request.message_ids if name in self.asked]
        protos = [Proto(metadata=Meta(message_id=reply, reply_to_message_id=name)) for name, reply in found]
        trees = [ObjectTree(object_id=reply) for _, reply in found]
        for name in set(request.message_ids) - {name for name, _ in found}:
            unknown = create_message_error_unavailable_ins_message(name, 1)
            protos.append(message_to_proto(unknown))
            trees.append(get_object_tree(unknown))
            self.objects[unknown.object_id] = unknown.deflate()
        return PullAppMessagesResponse(messages_list=protos, message_object_trees=trees)

    def reply(self, node: int) -> str:
        content = self.objects[f"{node}"]
        self.objects[get_object_id(content)] = content
        return get_object_id(content)

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        content = self.objects[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, _: object) -> None:  # noqa: N802
        """Nothing to do."""

    PushObject = ConfirmMessageReceived


def real_grid(link: Link) -> HttpGrid:
    grid = HttpGrid(token="any")
    grid._client = link  # type: ignore[assignment]
    grid._run = SimpleNamespace(run_id=1)  # type: ignore[assignment]
    return grid


UNDECODABLE = {  # all of them pass the SuperLink's own check
    "no message": MetricRecord({"a": 1}).deflate(),
    "no protobuf": b"Message  4\x00\xff\xff\xff\xff",
    "no content": b"Message  0\x00",
}


@pytest.mark.parametrize("kind", UNDECODABLE)
def test_a_reply_that_flower_cannot_decode_costs_its_device_and_no_other(kind: str) -> None:
    """Flower decodes in the ServerApp: the exception ended the run."""
    link = Link()
    messages = tasks(1)
    for node in (1, 2, 4, 5):
        answer = Message(Error(code=2, reason="broken"), reply_to=messages[node - 1])
        answer.metadata.__dict__["_reply_to_message_id"] = messages[node - 1].object_id
        link.objects[f"{node}"] = answer.deflate()
    link.objects["3"] = UNDECODABLE[kind]
    validate_object_content(UNDECODABLE[kind])
    talk = RoundGrid(real_grid(link), stop_at_replies=None)
    replies = talk.send_and_receive(messages, timeout=30)
    assert len(replies) == 4
    (reason,) = talk.unanswered.values()
    assert re.fullmatch(r"its reply cannot be read \(\w+\)", reason)
    assert list(talk.unanswered) == [messages[2].metadata.message_id]


def test_a_reply_that_says_it_answers_another_devices_message_is_not_taken_for_that_ones() -> None:
    class Forging(Answering):
        def answer(self, node: int, error: bool = False) -> None:
            super().answer(node, error)
            if node == 3:
                self._replies["1/3"].metadata.__dict__["_reply_to_message_id"] = "1/1"

    talk = RoundGrid(Forging([2, 3, 4, 5]), stop_at_replies=None)
    assert nodes(talk.send_and_receive(tasks(1), timeout=0.3)) == [2, 4, 5]
    assert talk.unanswered == dict.fromkeys(["1/1", "1/3"], "no reply within 0.3 s")


def test_every_reply_is_announced_and_the_rest_goes_on_meanwhile() -> None:
    arrived: list[int] = []
    looks: list[float] = []
    talk = RoundGrid(
        Answering([1, 2, -3]),
        stop_at_replies=None,
        meanwhile=lambda: looks.append(time.monotonic()),
        arrived=arrived.append,
    )
    talk.send_and_receive(tasks(1), timeout=0.5)
    assert arrived == [1, 2, 3]
    assert 3 <= len(looks) <= 11
