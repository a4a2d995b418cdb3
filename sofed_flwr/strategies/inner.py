"""A Flower strategy inside ours, and what the rest of the round has to know of it.

`SofedFedAvg` (flower/strategy.py) decodes and checks the replies of a round; a strategy of Flower's own then combines
the accepted ones. A component of this package is a function that returns an `InnerStrategy`: a new strategy is one
short function and one yaml, or one yaml alone where Flower's arguments suffice (`from_flower`).

BatchNorm's running statistics are measurements. A strategy that trims may take them like weights. A server optimizer
may not: momentum would make a shrinking variance negative. Nor may one that compares whole models, in which they
outweigh all parameters. Integer counters are not combined. What does not go through the strategy takes the plain mean
over the devices that the strategy used.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy.fedopt import FedOpt
from pydantic import Field, validate_call
from torch import Tensor

from sofed_flwr.core.records import Noise, Release, State, Update
from sofed_flwr.core.state_dicts import is_parameter, mean
from sofed_flwr.strategies.memory import recall, remembered

STEPS = "steps"


@dataclass
class InnerStrategy:
    """`min_replies`: valid replies that a round needs, including malicious ones.

    `parameters_only`: statistics take the plain mean. `bounded`: the strategy limits the effect of a long reply, so the
    gate compares no lengths; comparing would drop the device that a robust strategy counts as malicious, and would let
    one device decide whether others are dropped, which differential privacy does not allow. `compares_directions`: the
    gate drops replies that point against the others. `dtype`: Krum takes |x|² + |y|² - 2xy of whole models, which in
    float32 loses the short distance that devices move in one round.
    """

    strategy: flower.FedAvg | flower.DifferentialPrivacyServerSideFixedClipping
    min_replies: int = 1
    parameters_only: bool = False
    bounded: bool = False
    compares_directions: bool = False
    dtype: torch.dtype = torch.float32
    _steps: int = field(default=0, init=False)

    def aggregate(self, replies: Mapping[int, Message], updates: Sequence[Update], current: State) -> State:
        """The next global model from accepted updates, in order of device, and the replies that brought them.

        A reply's content becomes its decoded tensors. Every reply weighs the same, 1/K as in Algorithm 1: a weight that
        a device reports is not used. Flower's `server_round` counts the steps made; a failed round makes none.
        """
        # sorted: a list of arrays, as FedAvgM remembers them, has to mean the same tensors after a resume
        names = sorted(name for name, tensor in current.items() if self._combines(name, tensor))
        for update in updates:
            replies[update.device].content = self._content(update, names)
        self._begin({name: current[name] for name in names})
        with _quiet():
            accepted = [replies[update.device] for update in updates]
            arrays, metrics = self.strategy.aggregate_train(self._steps + 1, accepted)
        if arrays is None or metrics is None:
            raise ValueError(f"{type(self.strategy).__name__} cannot combine {len(updates)} replies")
        self._steps += 1
        used = [update for update in updates if update.device in cast(list[int], metrics["devices"])]
        combined = dict(arrays.to_torch_state_dict()) | mean(used, current.keys() - set(names))
        return {name: combined[name].to(tensor.dtype) for name, tensor in current.items()}

    def noise(self, clients: int) -> Noise | None:
        """The noise on an aggregate of this many updates, or None."""
        return None

    def report(self, releases: Sequence[Release]) -> Mapping[str, float]:
        """Numbers for the metrics log after a round that counted; `releases` are all models that were sent."""
        return {}

    def exhausted(self, releases: Sequence[Release]) -> str | None:
        """Why it will combine no further round, or None."""
        return None

    def state_dict(self) -> State:
        """What a resumed run needs."""
        return {STEPS: torch.tensor(self._steps)} | remembered(self.strategy)

    def load_state_dict(self, state: State) -> None:
        """Continue from it; an empty state is a first start."""
        self._steps = int(state.get(STEPS, 0))
        recall(self.strategy, {name: tensor for name, tensor in state.items() if name != STEPS})

    def _combines(self, name: str, tensor: Tensor) -> bool:
        return is_parameter(name, tensor) if self.parameters_only else tensor.is_floating_point()

    def _content(self, update: Update, names: Sequence[str]) -> RecordDict:
        arrays = pack_arrays({name: update.shared[name].to(self.dtype) for name in names})
        return RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1, "device": update.device})})

    def _begin(self, current: State) -> None:
        """What `configure_train` would tell the strategy: the global model that the replies started from."""
        averaging = self.strategy if isinstance(self.strategy, flower.FedAvg) else self.strategy.strategy
        cast(flower.FedAvg, averaging).train_metrics_aggr_fn = _devices
        if hasattr(self.strategy, "current_arrays"):
            arrays = pack_arrays({name: tensor.to(self.dtype) for name, tensor in current.items()})
            by_name = {name: array.numpy() for name, array in arrays.items()}
            self.strategy.current_arrays = by_name if isinstance(self.strategy, FedOpt) else arrays


@validate_call
def from_flower(
    name: str, min_replies: Annotated[int, Field(ge=1)], parameters_only: bool, bounded: bool, **arguments: Any
) -> InnerStrategy:
    """Any FedAvg of `flwr.serverapp.strategy`, by its name and Flower's own arguments."""
    kinds = [kind for kind in vars(flower).values() if isinstance(kind, type) and issubclass(kind, flower.FedAvg)]
    known = {kind.__name__: kind for kind in kinds}
    if name not in known:
        raise ValueError(f"name={name}: Flower has no such strategy; choose one of {', '.join(sorted(known))}")
    return InnerStrategy(known[name](**arguments), min_replies, parameters_only, bounded)


def pack_arrays(state: State) -> ArrayRecord:
    """Named tensors as Flower's strategies expect them: one array each."""
    return ArrayRecord({name: Array(tensor.numpy()) for name, tensor in state.items()})


def _devices(replies: list[RecordDict], _: str) -> MetricRecord:
    """Strategies that select pass on only the metrics of the selected replies: this shows which devices were used."""
    devices = [reply.metric_records["metrics"]["device"] for reply in replies]
    return MetricRecord({"devices": cast(list[int], devices)})


@contextmanager
def _quiet() -> Iterator[None]:
    """Flower logs numbers of results and failures; after the gate there are no failures to report."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
