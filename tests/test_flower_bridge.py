"""Messages: what a device sends, and what the server makes of hostile ones. No Flower process, real Flower records."""

import pickle
import uuid
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo

import client_app
from sofed_flwr import node_directory
from sofed_flwr.assembly import build_server
from sofed_flwr.contracts import Update
from sofed_flwr.flower import Task, pack_model, pack_task, pack_update, unpack_task, unpack_update
from sofed_flwr.node_directory import NodeDirectory
from sofed_flwr.run_config import RunConfig
from sofed_flwr.runlog import read_rows
from sofed_flwr.stops import TooFewDevicesError
from sofed_flwr.strategy import Rules, SofedStrategy
from sofed_flwr.tensor_file import head_of

pytestmark = pytest.mark.usefixtures("_inside_a_run")

GLOBAL = {"online.w": torch.zeros(2, 3), "online.n": torch.tensor(4)}


def task_message(device: int = 3) -> Message:
    return pack_task(Task("a: 1", "run", 7, device), pack_model(GLOBAL), node=5, ttl=60)


def context(**node_config: int) -> Context:
    return Context(run_id=1, node_id=5, node_config=node_config, state=RecordDict(), run_config={})


def reply(shared: ArrayRecord, **counts: float) -> Message:
    metrics = MetricRecord({"round": 7, **counts})
    return Message(RecordDict({"shared": shared, "counts": metrics}), reply_to=task_message())


def test_a_task_arrives_as_it_was_sent() -> None:
    task, shared = unpack_task(task_message(), context(**{"partition-id": 0}))
    assert task == Task("a: 1", "run", 7, 3)
    assert all(
        torch.equal(shared[name], tensor) and shared[name].dtype == tensor.dtype for name, tensor in GLOBAL.items()
    )


def test_a_real_device_refuses_a_task_meant_for_another_one() -> None:
    assert unpack_task(task_message(3), context(**{"device-id": 3}))[0].device == 3
    with pytest.raises(ValueError, match="device-id=8: the server knows this node as device 3"):
        unpack_task(task_message(3), context(**{"device-id": 8}))


def test_an_update_arrives_as_it_was_sent_with_its_size() -> None:
    update = Update(3, 7, {name: tensor + 1 for name, tensor in GLOBAL.items()}, {"loss": 0.5})
    found = unpack_update(pack_update(update, task_message()), 3, GLOBAL)
    assert (found.device, found.round) == (3, 7)
    assert all(torch.equal(found.shared[name], tensor) for name, tensor in update.shared.items())
    assert found.metrics["loss"] == 0.5
    assert 24 + 8 <= found.metrics["bytes_up"] <= 24 + 8 + 2 * 256


def packed(content: bytes, stype: str = "safetensors") -> ArrayRecord:
    return ArrayRecord({"model": Array("uint8", (len(content),), stype, content)})


HONEST = pack_model(GLOBAL)["model"].data
HOSTILE = {
    "another format": (
        packed(HONEST, "numpy.ndarray"),
        r"holds \{'model': 'numpy.ndarray'\}, expected model as safetensors",
    ),
    "an array per tensor": (ArrayRecord({"online.w": Array(np.zeros((2, 3), np.float32))}), "shared tensors holds"),
    "an array more": (ArrayRecord({**pack_model(GLOBAL), "pixels": Array(np.zeros(1))}), "shared tensors holds"),
    "nothing": (packed(b""), "cannot be decoded"),
    "garbage of the right size": (packed(b"x" * len(HONEST)), "cannot be decoded"),
    "half of it": (packed(HONEST[: len(HONEST) // 2]), "cannot be decoded"),
    "too many bytes": (packed(b"x" * 10_000), "has 10000 bytes, expected at most 544"),
    "a head that asks for 800 GB": (packed(HONEST.replace(b"[2,3]", b"[2,99999999999]")), "cannot be decoded"),
    "an unknown type": (packed(HONEST.replace(b"F32", b"PKL")), "cannot be decoded"),
    "a pickle": (packed(pickle.dumps({"online.w": 1})), "cannot be decoded"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_array_is_an_error_about_that_reply(kind: str) -> None:
    record, reason = HOSTILE[kind]
    with pytest.raises(ValueError, match=reason):
        unpack_update(reply(record), 3, GLOBAL)


def test_no_byte_of_the_head_can_be_changed_into_a_crash() -> None:
    """What still decodes is for the gate to judge."""
    refused = 0
    for position in range(len(head_of(HONEST))):
        for value in b"\x00-9[\xff":
            record = packed(HONEST[:position] + bytes([value]) + HONEST[position + 1 :])
            try:
                unpack_update(reply(record), 3, GLOBAL)
            except ValueError:
                refused += 1
    assert refused > 2 * len(head_of(HONEST))


def test_a_reply_with_more_than_it_should_hold_is_refused() -> None:
    message = reply(pack_model(GLOBAL))
    message.content["pixels"] = MetricRecord({"a": 1})
    with pytest.raises(ValueError, match="reply holds the records"):
        unpack_update(message, 3, GLOBAL)


@pytest.mark.parametrize("counts", [{"loss": [1.0, 2.0]}, {"round": 7.5}, {"round": [7]}])
def test_counts_that_are_not_numbers_are_refused(counts: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="counts must be numbers with a whole round among them"):
        unpack_update(reply(pack_model(GLOBAL), **counts), 3, GLOBAL)


def test_an_error_is_passed_on_in_its_own_words() -> None:
    message = Message(Error(code=2, reason="ValueError: the lens is dirty"), reply_to=task_message())
    with pytest.raises(ValueError, match="the lens is dirty"):
        unpack_update(message, 3, GLOBAL)


class Grid:
    """Nodes by id with their node config; answers through the real ClientApp, trains for real, in this process."""

    def __init__(self, **nodes: dict[str, int]) -> None:
        self.nodes = {int(name[1:]): node_config for name, node_config in nodes.items()}
        self.asked: list[int] = []
        self._replies: dict[str, Message] = {}

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node) for node in self.nodes]

    def push_messages(self, messages: list[Message]) -> list[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
            for reply in self.replies(message):
                self._replies[message.metadata.message_id] = reply
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, names: list[str]) -> list[Message]:
        return [self._replies.pop(name) for name in names if name in self._replies]

    def send_and_receive(self, messages: list[Message], timeout: float) -> list[Message]:
        self.asked += [message.metadata.dst_node_id for message in messages]
        return self.pull_messages(self.push_messages(messages))

    def replies(self, message: Message) -> Iterator[Message]:
        node = message.metadata.dst_node_id
        answer = client_app.app(message, context(**self.nodes[node]))
        answer.metadata.__dict__["_src_node_id"] = node
        yield answer


class FaultyGrid(Grid):
    """In round 1 one device fails and another never answers."""

    def replies(self, message: Message) -> Iterator[Message]:
        device = int(message.content.config_records.get("task", {}).get("device", -1))
        if message.metadata.group_id == "1" and device == 1:
            yield Message(Error(code=2, reason="ValueError: the lens is dirty"), reply_to=message)
        elif message.metadata.group_id != "1" or device != 2:
            yield from super().replies(message)


def strategy_of(config: RunConfig, grid: Grid, **rules: float) -> SofedStrategy:
    chosen = {"everyone": 1.0, "wait": 1.0, "ask": None, "enough": None, "deadline": 60.0} | rules
    return SofedStrategy(build_server(config), grid, config.to_yaml(), config.seed, Rules(config.clients, **chosen))


def test_a_round_goes_on_without_the_devices_that_failed_and_names_them(smoke: Callable[..., RunConfig]) -> None:
    strategy = strategy_of(smoke("clients=3", "rounds=2"), FaultyGrid(n5={"partition-id": 0}), deadline=10)
    strategy.run()
    rows = read_rows(strategy.server.directory.log.path)
    dropped = {row["device"]: row["reason"] for row in rows if row["name"] == "dropped"}
    assert dropped == {1: "ValueError: the lens is dirty", 2: "no reply within 10 s"}
    assert [row["value"] for row in rows if row["name"] == "replies"] == [1, 3]
    assert strategy.server.committed == 2


def test_as_many_devices_as_wanted_are_asked_and_a_repeated_round_asks_the_same(
    smoke: Callable[..., RunConfig],
) -> None:
    def asked(out: str) -> list[list[int]]:
        strategy = strategy_of(smoke("clients=4", "rounds=3", out=out), Grid(n5={"partition-id": 0}), ask=2)
        strategy.run()
        rows = read_rows(strategy.server.directory.log.path)
        return [[row["device"] for row in rows if row["name"] == "steps" and row["round"] == r] for r in (1, 2, 3)]

    first = asked("first")
    assert [len(devices) for devices in first] == [2, 2, 2]
    assert len({device for devices in first for device in devices}) > 2
    assert asked("second") == first


def directory(grid: Grid, devices: int, fewest: int = 1) -> NodeDirectory:
    return NodeDirectory(grid, range(devices), fewest)


def test_simulated_nodes_take_the_devices_in_turn_by_rank() -> None:
    grid = Grid(n70={"partition-id": 1}, n90={"partition-id": 0})
    assert directory(grid, 5).gather(everyone=1, wait=1) == {0: 90, 1: 70, 2: 90, 3: 70, 4: 90}


def test_real_devices_speak_for_themselves_and_are_asked_once() -> None:
    grid = Grid(n70={"device-id": 1}, n90={"device-id": 0})
    known = directory(grid, 2)
    assert known.gather(everyone=1, wait=1) == {0: 90, 1: 70}
    known.gather(everyone=1, wait=1)
    assert sorted(grid.asked) == [70, 90]


class Registered(Grid):
    """Nodes that connected one after the other with keys registered under these names."""

    def get_nodes(self) -> list[NodeInfo]:
        names = {70: "device-1", 90: "device-0", 95: "device-0"}
        return [NodeInfo(node_id=node, name=names[node], last_activated_at=str(node)) for node in (95, 70, 90)]


def test_a_registered_device_is_known_by_its_key_and_the_later_of_two_nodes_speaks_for_it() -> None:
    grid = Registered()
    assert directory(grid, 2).gather(everyone=1, wait=1) == {0: 95, 1: 70}
    assert grid.asked == []


def test_a_round_begins_without_a_device_that_does_not_come_if_enough_are_there() -> None:
    grid = Grid(n90={"device-id": 0}, n91={"device-id": 2})
    assert directory(grid, 3, fewest=2).gather(everyone=0, wait=1) == {0: 90, 2: 91}


def test_too_few_devices_are_named_once_a_minute_and_then_end_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault 18; the clock runs a hundred times faster here."""
    monkeypatch.setattr(node_directory, "STATUS_SECONDS", 0.6)
    monkeypatch.setattr(node_directory, "POLL_SECONDS", 0.01)
    with pytest.raises(TooFewDevicesError, match=r"too few devices connected within 2 s: 1 of at least 2 are here"):
        directory(Grid(n90={"device-id": 0}), 3, fewest=2).gather(everyone=0, wait=2)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert lines[0].startswith("waiting for devices: 1 of at least 2 are here, missing [1, 2]; giving up in 1 s")
