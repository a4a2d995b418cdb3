"""The bridge to Flower: tasks and updates as messages.

What a device sends is one record of shared tensors and one of counters; nothing else has a way out. A reply is not
trusted: sizes are compared before anything is decoded, and whatever fails is a `ValueError` about that reply alone.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from torch import Tensor

from sofed_flwr.contracts import State, Update

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
    """The task and the global model; a simulated device is told its number, a real one has it and refuses another's."""
    order: dict[str, Any] = dict(message.content.config_records["task"])
    task = Task(**order)
    own = int(context.node_config.get("device-id", task.device))
    if own != task.device:
        raise ValueError(f"device-id={own}: the server knows this node as device {task.device}")
    return task, dict(message.content.array_records["shared"].to_torch_state_dict())


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
