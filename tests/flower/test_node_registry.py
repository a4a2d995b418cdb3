"""Who speaks for which device: registered names, claims, simulated nodes, and nodes that say nothing or nonsense."""

import time
import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from sofed_flwr.core.errors import TooFewDevicesError
from sofed_flwr.flower import node_registry as node_directory
from sofed_flwr.flower.node_registry import NodeRegistry
from tests.flower.test_messages import Grid

pytestmark = pytest.mark.usefixtures("_inside_a_run")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_directory, "POLL_SECONDS", 0.01)


def directory(grid: Grid, devices: int, fewest: int = 1) -> NodeRegistry:
    return NodeRegistry(grid, range(devices), fewest)


def test_simulated_nodes_take_the_devices_in_turn_by_rank() -> None:
    grid = Grid(n70={"partition-id": 1}, n90={"partition-id": 0})
    assert directory(grid, 5).gather(first_wait=1, quorum_wait=1) == {0: 90, 1: 70, 2: 90, 3: 70, 4: 90}


def test_real_devices_speak_for_themselves_and_are_asked_once() -> None:
    grid = Grid(n70={"device-id": 1}, n90={"device-id": 0})
    known = directory(grid, 2)
    assert known.gather(first_wait=1, quorum_wait=1) == {0: 90, 1: 70}
    known.gather(first_wait=1, quorum_wait=1)
    assert sorted(grid.asked) == [70, 90]


Answer = RecordDict | Error | None


def says(**identity: object) -> RecordDict:
    return RecordDict({"identity": MetricRecord(identity)})  # type: ignore[arg-type]


class Node(NamedTuple):
    """One that connected at `since`, under the name its key is registered with, if it has one."""

    answer: Answer = None
    name: str = ""
    since: str = "noon"


class Federation(Grid):
    """Nodes that answer questions in a way a test chooses; None is no answer."""

    def __init__(self, **nodes: Node) -> None:
        super().__init__()
        self.present = {int(name[1:]): node for name, node in nodes.items()}

    def get_nodes(self) -> list[NodeInfo]:
        return [
            NodeInfo(node_id=number, name=node.name, last_activated_at=node.since)
            for number, node in self.present.items()
        ]

    def replies(self, message: Message) -> Iterator[Message]:
        answer = self.present[message.metadata.dst_node_id].answer
        if answer is not None:
            yield Message(answer, reply_to=message)


def key(number: int, since: str = "noon") -> Node:
    return Node(None, f"device-{number}", since)


def test_a_registered_device_is_known_by_its_key_and_the_later_of_two_nodes_speaks_for_it() -> None:
    grid = Federation(n95=key(0, "at two"), n70=key(1), n90=key(0, "at one"))
    assert directory(grid, 2).gather(first_wait=1, quorum_wait=1) == {0: 95, 1: 70}
    assert grid.asked == []


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_an_unnamed_node_that_claims_a_registered_device_is_refused_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also one that connected later, and also when the device is away for a while."""
    grid = Federation(n70=key(0), n80=key(1), n90=Node(says(device=0), since="at one"))
    known = directory(grid, 2)
    for _ in range(3):
        assert known.gather(first_wait=0, quorum_wait=1) == {0: 70, 1: 80}
    del grid.present[70]
    assert known.gather(first_wait=0, quorum_wait=1) == {1: 80}
    assert warnings(caplog) == ["node 90 is not asked to train: it claims device 0, which is registered with a key"]
    assert grid.asked == [90]


def test_a_registered_device_takes_its_place_from_whoever_claimed_it_before() -> None:
    grid = Federation(n90=Node(says(device=0)), n91=Node(says(device=1)))
    known = directory(grid, 2)
    assert known.gather(first_wait=1, quorum_wait=1) == {0: 90, 1: 91}
    grid.present[70] = key(0, "at one")
    assert known.gather(first_wait=1, quorum_wait=1) == {0: 70, 1: 91}


def test_the_first_to_claim_a_device_keeps_it_until_it_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    grid = Federation(n90=Node(says(device=0)), n91=Node(says(device=1)))
    known = directory(grid, 2)
    known.gather(first_wait=1, quorum_wait=1)
    grid.present[10] = Node(says(device=0), since="at one")
    for _ in range(2):
        assert known.gather(first_wait=0, quorum_wait=1) == {0: 90, 1: 91}
    assert warnings(caplog) == ["node 10 is not asked to train: it claims device 0, which another node has claimed"]
    del grid.present[90]
    assert known.gather(first_wait=0, quorum_wait=1) == {0: 10, 1: 91}


def test_a_device_that_is_none_of_the_runs_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    grid = Federation(n90=Node(says(device=0)), n91=Node(says(device=7)))
    known = directory(grid, 2)
    assert known.gather(first_wait=0.3, quorum_wait=1) == {0: 90}
    assert warnings(caplog) == ["node 91 is not asked to train: it claims device 7, which is not one of this run"]


@pytest.mark.parametrize("device", [key(0), Node(says(device=0))], ids=["registered", "unnamed"])
def test_one_rank_among_devices_takes_no_place(device: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Nor when the device is away for a while."""
    grid = Federation(n70=device, n90=Node(says(rank=0)))
    known = directory(grid, 3)
    assert known.gather(first_wait=0.3, quorum_wait=1) == {0: 70}
    del grid.present[70]
    with pytest.raises(TooFewDevicesError):
        known.gather(first_wait=0, quorum_wait=0.2)
    assert warnings(caplog) == ["node 90 is not asked to train: it answers like a simulated one, beside real devices"]


NONSENSE = {
    "nothing": RecordDict(),
    "another record": RecordDict({"who": MetricRecord({"device": 1})}),
    "another kind of record": RecordDict({"identity": ConfigRecord({"device": 1})}),
    "another name": says(king=1),
    "two names": says(device=1, rank=1),
    "a hundred thousand names": says(**{str(number): 1 for number in range(100_000)}),
    "a fraction": says(device=1.0),
    "a list": says(device=[1]),
    "a negative number": says(device=-1),
    "a huge number": says(device=2**62),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_a_node_that_does_not_say_who_it_is_is_left_alone_until_it_connects_again(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Federation(n90=Node(says(device=0)), n91=Node(NONSENSE[kind]))
    known = directory(grid, 2)
    for _ in range(3):
        assert known.gather(first_wait=0.1, quorum_wait=1) == {0: 90}
    assert grid.asked == [90, 91]
    assert warnings(caplog) == ["node 91 is not asked to train: it does not say which device it is"]
    grid.present[91] = Node(says(device=1), since="at one")
    assert known.gather(first_wait=1, quorum_wait=1) == {0: 90, 1: 91}


def test_a_mute_node_costs_no_round_a_second_and_is_asked_once() -> None:
    """It cost each round 60 s."""
    grid = Federation(n90=Node(says(device=0)), n91=Node(None))
    known = directory(grid, 2)
    known.gather(first_wait=0, quorum_wait=1)
    began = time.monotonic()
    for _ in range(10):
        assert known.gather(first_wait=0, quorum_wait=1) == {0: 90}
    assert time.monotonic() - began < 1
    assert grid.asked == [90, 91]


def test_a_node_whose_answer_is_an_error_is_asked_again_in_the_next_round_and_not_before() -> None:
    grid = Federation(n90=Node(says(device=0)), n91=Node(Error(2, "out of memory")))
    known = directory(grid, 2)
    known.gather(first_wait=0.1, quorum_wait=1)
    assert grid.asked == [90, 91]
    grid.present[91] = Node(says(device=1))
    assert known.gather(first_wait=1, quorum_wait=1) == {0: 90, 1: 91}


def test_simulated_nodes_share_the_devices_only_when_all_have_answered_or_time_is_up() -> None:
    grid = Federation(n90=Node(says(rank=1)), n91=Node(None))
    began = time.monotonic()
    assert directory(grid, 2).gather(first_wait=0.3, quorum_wait=1) == {0: 90, 1: 90}
    assert time.monotonic() - began >= 0.3


def test_an_answer_that_cannot_be_read_or_names_another_question_is_no_answer() -> None:
    class Broken(Federation):
        def pull_messages(self, names: list[str]) -> list[Message]:
            found = super().pull_messages(names)
            if any(answer.metadata.src_node_id == 91 for answer in found):
                raise AttributeError("'RecordDict' object has no attribute 'metadata'")
            for answer in found:
                if answer.metadata.src_node_id == 92:
                    answer.metadata.__dict__["_reply_to_message_id"] = str(uuid.uuid4())
            return found

    grid = Broken(n90=Node(says(device=0)), n91=Node(says(device=1)), n92=Node(says(device=2)))
    assert directory(grid, 3).gather(first_wait=0.2, quorum_wait=1) == {0: 90}


def test_a_thousand_nodes_with_wrong_claims_leave_twenty_lines_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    grid = Federation(n1=key(0), **{f"n{number}": Node(says(device=0)) for number in range(10, 1010)})
    known = directory(grid, 2)
    for _ in range(20):
        assert known.gather(first_wait=0, quorum_wait=5) == {0: 1}
    assert len(grid.asked) == 1000
    assert len(caplog.records) == node_directory.REFUSALS_LOGGED
    assert warnings(caplog)[-1].endswith("; no more of this kind is logged")


def test_a_round_begins_without_a_device_that_does_not_come_if_enough_are_there() -> None:
    grid = Grid(n90={"device-id": 0}, n91={"device-id": 2})
    assert directory(grid, 3, fewest=2).gather(first_wait=0, quorum_wait=1) == {0: 90, 2: 91}


def test_too_few_devices_are_named_once_a_minute_and_then_end_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The clock runs a hundred times faster here."""
    monkeypatch.setattr(node_directory, "STATUS_SECONDS", 0.6)
    monkeypatch.setattr(node_directory, "POLL_SECONDS", 0.01)
    with pytest.raises(TooFewDevicesError, match=r"too few devices connected within 2 s: 1 of at least 2 are here"):
        directory(Grid(n90={"device-id": 0}), 3, fewest=2).gather(first_wait=0, quorum_wait=2)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert lines[0].startswith("waiting for devices: 1 of at least 2 are here, missing [1, 2]; giving up in 1 s")
