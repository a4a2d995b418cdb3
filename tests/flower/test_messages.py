"""Messages: what a device sends, and what the server makes of hostile ones. No Flower process, real Flower records."""

import logging
import pickle
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.node_pb2 import NodeInfo

import client_app
import server_app
from sofed_flwr.build import build_server
from sofed_flwr.codecs.fp32 import FP32
from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import DeviceError
from sofed_flwr.core.metrics import OF_SERVER, from_device
from sofed_flwr.core.records import Update
from sofed_flwr.flower.messages import Task, pack_model, pack_task, pack_update, unpack_task, unpack_update
from sofed_flwr.flower.strategy import SofedFedAvg
from sofed_flwr.storage.metrics_log import read_rows
from sofed_flwr.storage.tensor_file import head_of, to_bytes

pytestmark = pytest.mark.usefixtures("_inside_a_run")

GLOBAL = {"online.w": torch.zeros(2, 3), "online.n": torch.tensor(4)}


def task_message(device: int = 3) -> Message:
    return pack_task(Task("a: 1", "run", 7, device), pack_model(GLOBAL), node=5, ttl=60)


def context(**node_config: Any) -> Context:
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
    with pytest.raises(DeviceError, match="device-id=8: the server knows this node as device 3"):
        unpack_task(task_message(3), context(**{"device-id": 8}))


def test_an_update_arrives_as_it_was_sent_with_its_size() -> None:
    update = Update(3, 7, {name: tensor + 1 for name, tensor in GLOBAL.items()}, {"loss": 0.5})
    found = unpack_update(pack_update(update, task_message()), 3, GLOBAL, FP32())
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
        r"the array model is not declared as the \d+ bytes of safetensors it holds",
    ),
    "an array per tensor": (ArrayRecord({"online.w": Array(np.zeros((2, 3), np.float32))}), "shared tensors holds"),
    "an array more": (ArrayRecord({**pack_model(GLOBAL), "pixels": Array(np.zeros(1))}), "shared tensors holds"),
    "nothing": (packed(b""), "cannot be decoded"),
    "another declared type": (
        ArrayRecord({"model": Array("float32", (len(HONEST),), "safetensors", HONEST)}),
        "declared",
    ),
    "another declared shape": (
        ArrayRecord({"model": Array("uint8", (2, 3), "safetensors", HONEST)}),
        "not declared as",
    ),
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
        unpack_update(reply(record), 3, GLOBAL, FP32())


@pytest.mark.parametrize(
    "names", [[str(number) for number in range(10_000)], ["[/b]" * 2**18]], ids=["ten thousand", "a megabyte"]
)
def test_the_names_in_a_large_model_have_a_bound_of_their_own(names: list[str]) -> None:
    model = to_bytes({name: torch.zeros(0) for name in names})
    with pytest.raises(ValueError, match=r"^the head of the model has \d{6,7} bytes, expected at most 1024$"):
        unpack_update(reply(packed(model)), 3, GLOBAL | {"online.large": torch.zeros(10**6)}, FP32())


def test_no_byte_of_the_head_can_be_changed_into_a_crash() -> None:
    """What still decodes is for the gate to evaluate."""
    refused = 0
    for position in range(len(head_of(HONEST))):
        for value in b"\x00-9[\xff":
            record = packed(HONEST[:position] + bytes([value]) + HONEST[position + 1 :])
            try:
                unpack_update(reply(record), 3, GLOBAL, FP32())
            except ValueError:
                refused += 1
    assert refused > 2 * len(head_of(HONEST))


def test_a_reply_with_more_than_it_should_hold_is_refused() -> None:
    message = reply(pack_model(GLOBAL))
    message.content["pixels"] = MetricRecord({"a": 1})
    with pytest.raises(ValueError, match="reply holds other records"):
        unpack_update(message, 3, GLOBAL, FP32())


WRONG = [[1.0, 2.0], float("nan"), float("inf"), -1, 2**63, 10**5000, 0.5]


@pytest.mark.parametrize("value", WRONG, ids=[str(place) for place in range(len(WRONG))])
@pytest.mark.parametrize("name", ["steps", "unsaved"])
def test_an_impossible_value_of_a_known_metric_is_left_out_by_name(
    name: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    found = unpack_update(reply(pack_model(GLOBAL), loss=0.5, **{name: value}), 3, GLOBAL, FP32()).metrics
    assert (found.keys(), found["left_out"]) == ({"loss", "bytes_up", "left_out"}, 1)
    assert caplog.messages == [f"device 3 reports impossible values, left out: {name}"]


@pytest.mark.parametrize("value", [True, "7", None])
def test_what_is_no_number_at_all_is_left_out_too(value: Any) -> None:
    """Flower's own record refuses these, but one that came over the network was not made by it."""
    assert from_device({"round": 7, "steps": value}) == ({"round": 7, "left_out": 1}, ["steps"])


@pytest.mark.parametrize("value", WRONG, ids=[str(place) for place in range(len(WRONG))])
def test_a_reply_with_an_impossible_round_or_none_is_refused(value: Any) -> None:
    for content in ({"round": value}, {"loss": 0.5}):
        records = RecordDict({"shared": pack_model(GLOBAL), "counts": MetricRecord(content)})
        with pytest.raises(ValueError, match=r"^reply does not say which round it belongs to$"):
            unpack_update(Message(records, reply_to=task_message()), 3, GLOBAL, FP32())


def test_names_that_only_the_server_uses_and_unknown_ones_are_counted_and_left_out() -> None:
    sent = dict.fromkeys([*OF_SERVER, "highest_score", "[/b]", "\x1b[2J"], 1.0) | {"loss": 0.5}
    found = unpack_update(reply(pack_model(GLOBAL), **sent), 3, GLOBAL, FP32()).metrics
    assert found.keys() == {"loss", "bytes_up", "left_out"}
    assert found["left_out"] == len(OF_SERVER) + 3
    assert found["bytes_up"] > 1, "measured, not reported"


def test_a_hundred_thousand_metrics_cost_no_more_than_one() -> None:
    counts = MetricRecord({"round": 7, **{f"{number:0100d}": 1.0 for number in range(100_000)}})
    began = time.perf_counter()
    assert from_device(counts) == ({"round": 7, "left_out": 100_000}, [])
    assert time.perf_counter() - began < 0.1


CONTENTS: dict[str, Callable[[], object]] = {
    "metrics": lambda: MetricRecord({"round": 7}),
    "a chunk": lambda: ArrayChunk(b"pixels"),
    "no record": lambda: RecordDict(),
    "one record": lambda: RecordDict({"shared": pack_model(GLOBAL)}),
    "a hundred thousand records": lambda: RecordDict({f"{n}[/b]": MetricRecord({"a": 1}) for n in range(100_000)}),
    "records swapped": lambda: RecordDict({"counts": pack_model(GLOBAL), "shared": MetricRecord({"round": 7})}),
    "a config record": lambda: RecordDict({"shared": pack_model(GLOBAL), "counts": ConfigRecord({"round": 7})}),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_content_that_is_no_reply_is_an_error_about_it(kind: str) -> None:
    """Flower gives out whatever object a sender made the content of its message."""
    message = reply(pack_model(GLOBAL))
    message.__dict__["_content"] = CONTENTS[kind]()
    with pytest.raises(ValueError, match=r"^reply holds other records than the arrays shared and the metrics counts$"):
        unpack_update(message, 3, GLOBAL, FP32())


def test_a_message_without_content_is_an_error_about_it() -> None:
    message = reply(pack_model(GLOBAL))
    message.__dict__["_content"] = None
    with pytest.raises(ValueError, match="Message content is None"):
        unpack_update(message, 3, GLOBAL, FP32())


def test_an_error_is_passed_on_in_its_own_words() -> None:
    message = Message(Error(code=2, reason="ValueError: the lens is dirty"), reply_to=task_message())
    with pytest.raises(ValueError, match="the lens is dirty"):
        unpack_update(message, 3, GLOBAL, FP32())


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
            self.asked += [message.metadata.dst_node_id] if message.metadata.message_type == MessageType.QUERY else []
            for reply in self.replies(message):
                self._replies[message.metadata.message_id] = reply
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, names: list[str]) -> list[Message]:
        return [self._replies.pop(name) for name in names if name in self._replies]

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


def strategy_of(config: RunConfig, grid: Grid, **rules: float) -> SofedFedAvg:
    chosen = {"first_round_wait_s": 1.0, "quorum_wait_s": 1.0, "round_deadline_s": 60.0} | rules
    federation = config.federation.model_copy(update=chosen)
    return SofedFedAvg(build_server(config), grid, config.model_copy(update={"federation": federation}))


def test_a_round_goes_on_without_the_devices_that_failed_and_names_them(smoke: Callable[..., RunConfig]) -> None:
    strategy = strategy_of(smoke("clients=3", "rounds=2"), FaultyGrid(n5={"partition-id": 0}), round_deadline_s=10)
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
        strategy = strategy_of(smoke("clients=4", "rounds=3", out=out), Grid(n5={"partition-id": 0}), sample=2)
        strategy.run()
        rows = read_rows(strategy.server.directory.log.path)
        return [[row["device"] for row in rows if row["name"] == "steps" and row["round"] == r] for r in (1, 2, 3)]

    first = asked("first")
    assert [len(devices) for devices in first] == [2, 2, 2]
    assert len({device for devices in first for device in devices}) > 2
    assert asked("second") == first


def test_a_plain_flower_run_says_at_its_end_where_it_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Flower streams what its own logger writes."""
    overrides = f"scale=smoke rounds=1 evaluation=none out={tmp_path / 'run'}"
    run = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={"overrides": overrides})
    with caplog.at_level(logging.INFO, logger="flwr"):
        server_app.app(Grid(n5={"partition-id": 0}), run)
    last = caplog.records[-1]
    encoder = tmp_path / "run" / "encoder.safetensors"
    assert (last.name, last.getMessage()) == ("flwr", f"run directory: {tmp_path / 'run'}; encoder: {encoder}")
    assert encoder.exists()
