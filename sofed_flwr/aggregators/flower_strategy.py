"""Flower's own strategies as pure arithmetic: updates in, named tensors out.

The gate and the transport are ours, so a strategy is asked for its `aggregate_train` alone, with replies made here from
updates that already passed. All of them weigh the same: 1/K, as in Algorithm 1.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from flwr.app import Array, ArrayRecord, Message, MessageType, Metadata, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.serverapp import strategy as flower

from sofed_flwr.contracts import State, Update


def combine(
    strategy: flower.FedAvg, step: int, updates: Sequence[Update], names: Sequence[str], dtype: torch.dtype
) -> tuple[State, list[Update]]:
    """The strategy's result over the tensors `names`, computed in `dtype`, and the updates it chose to use.

    `step` is what Flower calls the server round; it counts from 1. `FedAvg` is the base of all of Flower's strategies.
    """
    strategy.train_metrics_aggr_fn = _devices
    result, metrics = ask(strategy, step, [reply(update, names, dtype) for update in updates])
    devices = metrics["devices"]
    assert isinstance(devices, list)
    return result, [update for update in updates if update.device in devices]


def ask(strategy: flower.Strategy, step: int, replies: Sequence[Message]) -> tuple[State, MetricRecord]:
    """What the strategy makes of the replies, tensors and metrics."""
    with _hushed():
        arrays, metrics = strategy.aggregate_train(step, replies)
    assert arrays is not None, f"{type(strategy).__name__} refuses {len(replies)} updates"
    assert metrics is not None
    return dict(arrays.to_torch_state_dict()), metrics


def _devices(replies: list[RecordDict], _: str) -> MetricRecord:
    """Strategies that select hand on the selected replies' metrics only: that is how they say whom they chose."""
    return MetricRecord({"devices": [reply.metric_records["metrics"]["device"] for reply in replies]})  # type: ignore[dict-item]


def reply(update: Update, names: Sequence[str], dtype: torch.dtype) -> Message:
    """A reply that never travelled: outside a running app Flower makes messages from complete metadata only."""
    arrays = pack_arrays({name: update.shared[name].to(dtype) for name in names})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1, "device": update.device})})
    metadata = Metadata(
        run_id=0,
        message_id="",
        src_node_id=update.device,
        dst_node_id=0,
        reply_to_message_id="",
        group_id=str(update.round),
        created_at=0.0,
        ttl=1.0,
        message_type=MessageType.TRAIN,
    )
    return make_message(metadata, content)


def pack_arrays(state: State) -> ArrayRecord:
    """Named tensors as Flower's strategies know them: one array each."""
    return ArrayRecord({name: Array(tensor.numpy()) for name, tensor in state.items()})


@contextmanager
def _hushed() -> Iterator[None]:
    """Flower counts results and failures aloud; after the gate it would count no failure, whatever happened."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
