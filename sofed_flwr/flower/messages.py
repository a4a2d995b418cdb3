"""The bridge to Flower: tasks and updates as messages.

A device sends the shared model and one record of counters, nothing else. A reply is not trusted: the number and size of
its records are checked before anything is iterated over or decoded, and every failure is a `ValueError` about that
reply alone.

The model travels as one array in the safetensors format. Flower moves every array by several calls through four
processes. With an array per tensor, 88 for the smallest ResNet, the SuperLink of five devices spent 58 s of CPU on
three rounds of 33 to 45 s; with a single array 9 s, and the rounds took 20 s (all on one machine with two cores).
"""

import logging
from dataclasses import asdict, dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict

from sofed_flwr.codecs.base import Codec, PayloadSize
from sofed_flwr.core.errors import DamagedFileError, DeviceError
from sofed_flwr.core.metrics import from_device
from sofed_flwr.core.records import State, Update
from sofed_flwr.storage.tensor_file import from_bytes, head_of, to_bytes

MODEL = "model"
"""Name of the one array in the record of shared tensors."""
SAFETENSORS = "safetensors"
"""How Flower's `Array.stype` names the format of that array's bytes."""
HEADER_BYTES = 256
"""More than safetensors' description of any one tensor."""

log = logging.getLogger(__name__)


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
    """The task and the global model; a simulated device takes its number from it, a real one refuses another's."""
    fields: dict[str, Any] = dict(message.content.config_records["task"])
    task = Task(**fields)
    own = int(context.node_config.get("device-id", task.device))
    if own != task.device:
        raise DeviceError(f"device-id={own}: the server knows this node as device {task.device}")
    return task, unpack_model(message.content.array_records["shared"])


def pack_update(update: Update, task: Message) -> Message:
    """The only message with content that leaves a device; the model is already encoded."""
    counts: dict[str, Any] = {"round": update.round, **update.metrics}
    content = RecordDict({"shared": pack_model(update.shared), "counts": MetricRecord(counts)})
    return Message(content, reply_to=task)


def unpack_update(message: Message, device: int, reference: State, codec: Codec) -> Update:
    """Decode the reply to a task of this device; raises `ValueError` with the reason.

    `reference` is the global model that the device was sent.
    """
    if message.has_error():
        raise ValueError(message.error.reason or f"error code {message.error.code}")
    arrays, counts = _records(message)
    metrics, impossible = from_device(counts)
    if "round" not in metrics:
        raise ValueError("reply does not say which round it belongs to")
    if impossible:
        log.warning("device %d reports impossible values, left out: %s", device, ", ".join(impossible))
    model = _sole_array(arrays)
    _refuse_larger(model, codec.max_size(reference))
    metrics["bytes_up"] = float(len(model))
    return Update(device, int(metrics.pop("round")), codec.decode(_parsed(model), reference), metrics)


def pack_model(state: State) -> ArrayRecord:
    """Named tensors in one of Flower's arrays."""
    content = to_bytes(state)
    return ArrayRecord({MODEL: Array("uint8", (len(content),), SAFETENSORS, content)})


def unpack_model(record: ArrayRecord) -> State:
    """The tensors of a packed model, whatever they are, or a `ValueError`."""
    return _parsed(_sole_array(record))


def _records(message: Message) -> tuple[ArrayRecord, MetricRecord]:
    """The two records of a reply; Flower accepts any of its objects as content."""
    content = message.content
    if isinstance(content, RecordDict) and len(content) == 2:
        shared, counts = content.get("shared"), content.get("counts")
        if isinstance(shared, ArrayRecord) and isinstance(counts, MetricRecord):
            return shared, counts
    raise ValueError("reply holds other records than the arrays shared and the metrics counts")


def _sole_array(record: ArrayRecord) -> bytes:
    """The bytes of the one array, whose declared type and size must be right."""
    if len(record) != 1 or MODEL not in record:
        raise ValueError(f"the record of shared tensors holds {len(record)} arrays, expected one called {MODEL}")
    array = record[MODEL]
    if (array.stype, array.dtype, tuple(array.shape)) != (SAFETENSORS, "uint8", (len(array.data),)):
        raise ValueError(f"the array {MODEL} is not declared as the {len(array.data)} bytes of {SAFETENSORS} it holds")
    return array.data


def _refuse_larger(model: bytes, largest: PayloadSize) -> None:
    most = largest.bytes + HEADER_BYTES * largest.tensors
    if len(model) > most:
        raise ValueError(f"the model has {len(model)} bytes, expected at most {most}")
    head, most = len(head_of(model)), HEADER_BYTES * (largest.tensors + 1)
    if head > most:
        raise ValueError(f"the head of the model has {head} bytes, expected at most {most}")


def _parsed(model: bytes) -> State:
    try:
        return from_bytes(model)
    except DamagedFileError as error:
        raise ValueError(f"the model cannot be decoded ({error})") from error
