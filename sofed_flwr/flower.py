"""The bridge to Flower: tasks and updates as messages, and who is behind a node id.

What a device sends is one record of shared tensors and one of counters; nothing else has a way out. A reply is not
trusted: sizes are compared before anything is decoded, and whatever fails is a `ValueError` about that reply alone.
"""

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from sofed_flwr.contracts import State, Update

QUERY_SECONDS = 60.0
POLL_SECONDS = 1.0
NPY_HEADER_BYTES = 256
"""More than the header of any array we exchange, in the .npy format that Flower uses."""


@dataclass(frozen=True)
class Task:
    """What the server asks of a device: train this round of this run, as this device."""

    config: str
    run: str
    round: int
    device: int


def pack_task(task: Task, shared: ArrayRecord, node: int, ttl: float) -> Message:
    """A task for one node; `shared`, the global model, is packed once and goes to all."""
    content = RecordDict({"shared": shared, "task": ConfigRecord(asdict(task))})
    return Message(content, dst_node_id=node, message_type=MessageType.TRAIN, ttl=ttl, group_id=str(task.round))


def unpack_task(message: Message, context: Context) -> tuple[Task, State]:
    """The task and the global model; a real device knows its own number, a simulated one is told."""
    order: dict[str, Any] = dict(message.content.config_records["task"])
    order["device"] = int(context.node_config.get("device-id", order["device"]))
    return Task(**order), dict(message.content.array_records["shared"].to_torch_state_dict())


def pack_update(update: Update, task: Message) -> Message:
    """The only message with content that ever leaves a device."""
    counts: dict[str, Any] = {"round": update.round, **update.metrics}
    content = RecordDict({"shared": pack_state(update.shared), "counts": MetricRecord(counts)})
    return Message(content, reply_to=task)


def unpack_update(message: Message, device: int, reference: State) -> Update:
    """Decode the reply of the device that was asked, or say in a `ValueError` why it cannot be."""
    if message.has_error():
        raise ValueError(message.error.reason or f"error code {message.error.code}")
    content = message.content
    if set(content.array_records) != {"shared"} or set(content.metric_records) != {"counts"} or len(content) != 2:
        raise ValueError(f"reply holds the records {sorted(content)}, expected counts and shared")
    round_number, counts = _read_counts(content.metric_records["counts"])
    arrays = content.array_records["shared"]
    shared = {name: _decode(name, array, reference.get(name)) for name, array in arrays.items()}
    counts["bytes_up"] = float(sum(len(array.data) for array in arrays.values()))
    return Update(device, round_number, shared, counts)


def pack_state(state: State) -> ArrayRecord:
    """Named tensors as Flower's arrays."""
    return ArrayRecord({name: Array(tensor.numpy()) for name, tensor in state.items()})


def _read_counts(record: MetricRecord) -> tuple[int, dict[str, float]]:
    lists = [name for name, value in record.items() if isinstance(value, list)]
    if lists or not isinstance(record.get("round"), int):
        raise ValueError(f"counts must be numbers with a whole round among them, got {dict(record)}")
    numbers: dict[str, Any] = dict(record)
    round_number = int(numbers.pop("round"))
    return round_number, {name: float(value) for name, value in numbers.items()}


def _decode(name: str, array: Array, expected: Tensor | None) -> Tensor:
    if expected is None:
        raise ValueError(f"{name} is not a tensor of the global model")
    if tuple(array.shape) != tuple(expected.shape):
        raise ValueError(f"{name} has shape {tuple(array.shape)}, expected {tuple(expected.shape)}")
    if not 0 <= len(array.data) - expected.nbytes <= NPY_HEADER_BYTES:
        raise ValueError(f"{name} has {len(array.data)} bytes, expected about {expected.nbytes}")
    try:
        return torch.from_numpy(array.numpy())
    except (ValueError, TypeError, MemoryError, OSError, EOFError) as error:
        raise ValueError(f"{name} cannot be decoded ({error})") from error


def identify(message: Message, context: Context) -> Message:
    """A node's answer to "who are you?": a real device has a number of its own, a simulated node only a rank."""
    node = context.node_config
    name, number = ("device", node["device-id"]) if "device-id" in node else ("rank", node["partition-id"])
    return Message(RecordDict({"identity": MetricRecord({name: int(number)})}), reply_to=message)


class NodeDirectory:
    """Which node speaks for which device. Node ids are random per run; devices are what counts."""

    def __init__(self) -> None:
        self._devices: dict[int, int] = {}
        self._ranks: dict[int, int] = {}

    def wait_for(self, grid: Grid, devices: Iterable[int], wait: float) -> dict[int, int]:
        """Device -> node for all of `devices`, asking newcomers until everyone is there or `wait` seconds are over."""
        wanted = sorted(devices)
        until = time.monotonic() + wait
        while True:
            self._meet(grid)
            found = self._assign(wanted)
            if len(found) == len(wanted):
                return found
            if time.monotonic() > until:
                missing = [device for device in wanted if device not in found]
                raise TimeoutError(f"devices {missing} did not connect within {wait:g} s")
            time.sleep(POLL_SECONDS)

    def _meet(self, grid: Grid) -> None:
        present = set(grid.get_node_ids())
        strangers = present - self._devices.keys() - self._ranks.keys()
        questions = [
            Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY, ttl=QUERY_SECONDS)
            for node in sorted(strangers)
        ]
        for reply in grid.send_and_receive(questions, timeout=QUERY_SECONDS) if questions else ():
            if not reply.has_error():
                identity = reply.content.metric_records["identity"]
                for name, known in (("device", self._devices), ("rank", self._ranks)):
                    if name in identity:
                        known[reply.metadata.src_node_id] = int(identity[name])  # type: ignore[arg-type]
        for known in (self._devices, self._ranks):
            for node in known.keys() - present:
                del known[node]

    def _assign(self, wanted: list[int]) -> dict[int, int]:
        """Real devices speak for themselves; simulated nodes, few or many, take the devices in turn."""
        if self._ranks:
            nodes = sorted(self._ranks, key=lambda node: self._ranks[node])
            return {device: nodes[position % len(nodes)] for position, device in enumerate(wanted)}
        return {device: node for node, device in self._devices.items() if device in wanted}
