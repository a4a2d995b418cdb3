"""The bridge to Flower: tasks and updates as messages.

What a device sends is the shared model and one record of counters; nothing else has a way out. A reply is not trusted:
its size is looked at before anything is decoded, and whatever fails is a `ValueError` about that reply alone.

The model travels as one array in the safetensors format. Flower moves every array by several calls through four
processes. With an array per tensor, 88 for the smallest ResNet, the SuperLink of five devices spent 58 s of CPU on
three rounds of 33 to 45 s; with a single array 9 s, and the rounds took 20 s (all on one machine with two cores).
"""

from dataclasses import asdict, dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict

from sofed_flwr.contracts import State, Update
from sofed_flwr.tensor_file import DamagedFileError, from_bytes, to_bytes

MODEL = "model"
"""Name of the one array in the record of shared tensors."""
SAFETENSORS = "safetensors"
"""How Flower's `Array.stype` names the format of that array's bytes."""
HEADER_BYTES = 256
"""More than safetensors' description of any one tensor."""


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
    return task, unpack_model(message.content.array_records["shared"])


def pack_update(update: Update, task: Message) -> Message:
    """The only message with content that ever leaves a device."""
    counts: dict[str, Any] = {"round": update.round, **update.metrics}
    content = RecordDict({"shared": pack_model(update.shared), "counts": MetricRecord(counts)})
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
    counts["bytes_up"] = float(sum(len(array.data) for array in arrays.values()))
    most = sum(tensor.nbytes + HEADER_BYTES for tensor in reference.values())
    if counts["bytes_up"] > most:
        raise ValueError(f"the model has {counts['bytes_up']:.0f} bytes, expected at most {most}")
    return Update(device, round_number, unpack_model(arrays), counts)


def pack_model(state: State) -> ArrayRecord:
    """Named tensors in one of Flower's arrays."""
    content = to_bytes(state)
    return ArrayRecord({MODEL: Array("uint8", (len(content),), SAFETENSORS, content)})


def unpack_model(record: ArrayRecord) -> State:
    """The tensors of a packed model, whatever they are, or a `ValueError`."""
    formats = {name: array.stype for name, array in record.items()}
    if formats != {MODEL: SAFETENSORS}:
        raise ValueError(f"the record of shared tensors holds {formats}, expected {MODEL} as {SAFETENSORS}")
    try:
        return from_bytes(record[MODEL].data)
    except DamagedFileError as error:
        raise ValueError(f"the model cannot be decoded ({error})") from error


def _read_counts(record: MetricRecord) -> tuple[int, dict[str, float]]:
    lists = [name for name, value in record.items() if isinstance(value, list)]
    if lists or not isinstance(record.get("round"), int):
        raise ValueError(f"counts must be numbers with a whole round among them, got {dict(record)}")
    numbers: dict[str, Any] = dict(record)
    round_number = int(numbers.pop("round"))
    return round_number, {name: float(value) for name, value in numbers.items()}
