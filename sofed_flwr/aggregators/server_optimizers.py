"""Strategies that take the mean's step as a gradient: Flower's FedAvgM, FedAdam and FedYogi.

Parameters only. BatchNorm's running statistics are measurements, not something to descend on: momentum carries a
shrinking variance past zero, and an adaptive step moves it by the learning rate whatever was measured. They and the
counters take the plain mean.

Flower's strategies expect one process from the first round to the last. Here one is made for every round, from the
global model and what the last one left behind, so a resumed run goes where an uninterrupted one goes. FedAdagrad is
left out: its steps only ever shrink, and the streams never end.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from flwr.serverapp import strategy as flower
from numpy.typing import NDArray
from pydantic import Field, validate_call

from sofed_flwr.aggregators.base import Unlimited, mean
from sofed_flwr.aggregators.flower_strategy import combine, pack_arrays
from sofed_flwr.contracts import State, Update
from sofed_flwr.parameters import is_parameter
from sofed_flwr.prefixes import under

Arrays = dict[str, NDArray[Any]]
FlowerAdaptive = flower.FedAdam | flower.FedYogi
Positive = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class ServerOptimizer(Unlimited, ABC):
    """Remembers how many steps it took (failed rounds are none) and arrays by kind and parameter, as `m.conv.weight`.

    All in float32, whatever the model travels as.
    """

    def __init__(self) -> None:
        self._state: State = {"step": torch.tensor(0)}

    def aggregate(self, updates: Sequence[Update], current: State) -> State:
        """Parameters by Flower's strategy, the rest by the mean."""
        before = {name: tensor.float() for name, tensor in current.items() if is_parameter(name, tensor)}
        step = int(self._state["step"]) + 1
        strategy = self._recall(before)
        result, _ = combine(strategy, step, updates, list(before), torch.float32)
        self._state = {"step": torch.tensor(step)} | self._memory(strategy, before)
        result |= mean(updates, current.keys() - before.keys())
        return {name: result[name].to(tensor.dtype) for name, tensor in current.items()}

    def state_dict(self) -> State:
        """`step` and what the strategy keeps."""
        return dict(self._state)

    def load_state_dict(self, state: State) -> None:
        """Go on from there."""
        self._state = {"step": torch.tensor(0)} | state

    @abstractmethod
    def _recall(self, current: State) -> flower.FedAvg:
        """Flower's strategy as it was after the last step; `configure_train` would have told it the current model."""

    @abstractmethod
    def _memory(self, strategy: Any, names: Iterable[str]) -> State:
        """What the strategy has to find again."""

    def _remembered(self, kind: str) -> Arrays:
        return {name: tensor.numpy() for name, tensor in under(f"{kind}.", self._state).items()}


class FedAvgM(ServerOptimizer):
    """SGD with momentum on the server (Hsu et al. 2019): m ← momentum m + (W - mean), W ← W - lr m."""

    @validate_call
    def __init__(self, lr: Positive, momentum: Decay) -> None:
        super().__init__()
        self.lr = lr
        self.momentum = momentum

    def _recall(self, current: State) -> flower.FedAvgM:
        strategy = flower.FedAvgM(server_learning_rate=self.lr, server_momentum=self.momentum)
        strategy.current_arrays = pack_arrays(current)
        momentum = self._remembered("momentum")
        strategy.momentum_vector = [momentum[name] for name in current] if momentum else None
        return strategy

    def _memory(self, strategy: flower.FedAvgM, names: Iterable[str]) -> State:
        vector = strategy.momentum_vector
        return {} if vector is None else _named("momentum", dict(zip(names, vector, strict=True)))


class Adaptive(ServerOptimizer):
    """m ← beta_1 m + (1 - beta_1) Δ, v by the rule's name, W ← W + lr m / (√v + tau), with Δ = mean - W.

    Reddi et al. 2021, "Adaptive Federated Optimization". A coordinate moves by about lr where |Δ| is far above tau,
    by less where it is below.
    """

    rule: ClassVar[type[FlowerAdaptive]]

    @validate_call
    def __init__(self, lr: Positive, beta_1: Decay, beta_2: Decay, tau: Positive) -> None:
        super().__init__()
        self.lr = lr
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.tau = tau

    def _recall(self, current: State) -> FlowerAdaptive:
        strategy = self.rule(eta=self.lr, beta_1=self.beta_1, beta_2=self.beta_2, tau=self.tau)
        strategy.current_arrays = {name: tensor.numpy() for name, tensor in current.items()}
        strategy.m_t = self._remembered("m")
        strategy.v_t = self._remembered("v")
        return strategy

    def _memory(self, strategy: FlowerAdaptive, names: Iterable[str]) -> State:
        return _named("m", strategy.m_t or {}) | _named("v", strategy.v_t or {})


class FedAdam(Adaptive):
    """v ← beta_2 v + (1 - beta_2) Δ², and Adam's correction of the first steps in Flower's form (step + 1 for step)."""

    rule = flower.FedAdam


class FedYogi(Adaptive):
    """v ← v - (1 - beta_2) Δ² sign(v - Δ²): v forgets a large Δ more slowly than Adam's."""

    rule = flower.FedYogi


def _named(kind: str, arrays: Arrays) -> State:
    return {f"{kind}.{name}": torch.from_numpy(np.asarray(array, np.float32)) for name, array in arrays.items()}
