"""Client-level differential privacy: Flower's server-side fixed clipping around FedAvg, with Flower's RDP accountant.

The guarantee (McMahan et al. 2018): from all global models of the run together one can hardly tell what any single
device contributed: with one device's updates replaced by none, every conclusion is at most e^epsilon times as likely,
but for a probability delta. It holds against whoever sees global models, so against the other devices too. It does not
hold against the server, which sees every update and is trusted (central DP).

Outside the guarantee: BatchNorm's running statistics and integer counters, which take the plain mean (noise would
make variances negative); the devices' counters in the server's diary; and who took part. No amplification by sampling
is claimed, because every device is asked in every round. Noise is ordinary floating-point noise.

The noise is calibrated for the mean over the devices that replied; a round with fewer than `clients` of them releases
nothing and costs nothing. It is drawn from the system's entropy and never from the run's seed: the seed is in the
configuration that every device gets, and noise that can be computed hides nothing. So a repeated round is not the same
to the bit. It costs the budget once: what was computed before a crash was never sent.

Adaptive clipping is left out: in Flower 1.39 it has no accountant, moves the clipping norm away from its target, and
draws noise for the norm after that move instead of the one that clipped.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant
from numpy.typing import NDArray
from pydantic import Field, validate_call
from torch import Tensor

from sofed_flwr.aggregators.base import mean
from sofed_flwr.aggregators.flower_strategy import ask, pack_arrays, reply
from sofed_flwr.contracts import State, Update
from sofed_flwr.parameters import is_parameter

try:
    import dp_accounting  # noqa: F401 (what Flower's accountant needs)
except ImportError as error:
    raise ImportError("dp-accounting is not installed; pip install 'sofed-flwr[dp]'") from error

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
FLAT = "parameters"
HAIR = 1e-12
STATE_WORDS = 624
"""Of numpy's global generator, 32 bits each."""


class FixedClipping:
    """W ← W + mean of the updates, each cut to `clipping_norm`, + noise of std noise_multiplier clipping_norm / K."""

    bounded = True
    directed = False

    @validate_call
    def __init__(
        self,
        noise_multiplier: Positive,
        clipping_norm: Positive,
        delta: Annotated[float, Field(gt=0, lt=1)],
        max_epsilon: Positive | None,
        clients: Annotated[int, Field(ge=1)],
    ) -> None:
        self.noise_multiplier = noise_multiplier
        self.clipping_norm = clipping_norm
        self.delta = delta
        self.max_epsilon = max_epsilon
        self.fewest = clients
        self.releases = 0
        if clients > 1 and delta >= 1 / clients:
            raise ValueError(
                f"delta={delta:g}: with {clients} devices, giving one away whole is a delta of 1/{clients}"
            )
        if (reason := self.exhausted()) is not None:
            raise ValueError(f"max_epsilon={max_epsilon:g}: {reason}")

    def aggregate(self, updates: Sequence[Update], current: State) -> State:
        """Parameters by Flower's wrapper, as one vector: it passes over tensors without dimensions."""
        names = sorted(name for name, tensor in current.items() if is_parameter(name, tensor))
        before = _flat(current, names)
        moved = [Update(update.device, update.round, {FLAT: _moved(update, names, before)}) for update in updates]
        replies = [reply(update, [FLAT], torch.float64) for update in moved]
        strategy = self._strategy(replies, before)
        with _fresh_noise():
            result, _ = ask(strategy, self.releases + 1, replies)
        self.releases += 1
        parts = torch.split(result[FLAT], [current[name].numel() for name in names])
        parameters = {name: part.view_as(current[name]) for name, part in zip(names, parts, strict=True)}
        combined = parameters | mean(updates, current.keys() - parameters.keys())
        return {name: combined[name].to(tensor.dtype) for name, tensor in current.items()}

    def report(self) -> Mapping[str, float]:
        """The budget spent so far, over all resumes."""
        return {"epsilon": self._accountant(self.fewest).get_privacy_spent().epsilon, "delta": self.delta}

    def exhausted(self) -> str | None:
        """Whether one more release would exceed the budget."""
        accountant, event = self._accountant(self.fewest), self._event(self.fewest)
        if self.max_epsilon is None or not accountant.would_exceed(event):
            return None
        spent = accountant.get_privacy_spent().epsilon if self.releases else 0.0
        accountant.compose(event)
        after = accountant.get_privacy_spent().epsilon
        return (
            f"epsilon is {spent:.4g} of {self.max_epsilon:g} after {self.releases} rounds, "
            f"one more round would make it {after:.4g} at delta {self.delta:g}"
        )

    def state_dict(self) -> State:
        """The ledger: releases are all alike, so their number is all."""
        return {"releases": torch.tensor(self.releases)}

    def load_state_dict(self, state: State) -> None:
        """Go on spending from there."""
        self.releases = int(state.get("releases", 0))

    def _strategy(self, replies: list[Message], before: Tensor) -> flower.Strategy:
        """Flower's wrapper, told of a round that has begun with as many devices as replied."""
        strategy = flower.DifferentialPrivacyServerSideFixedClipping(
            _Begun(replies),
            self.noise_multiplier,
            self.clipping_norm,
            len(replies),
            accountant=self._accountant(len(replies)),
        )
        strategy.configure_train(self.releases + 1, pack_arrays({FLAT: before}), ConfigRecord(), cast(Grid, None))
        return strategy

    def _accountant(self, clients: int) -> RdpAccountant:
        """Flower's, with the releases made so far; without amplification the number of clients costs nothing."""
        accountant = RdpAccountant(
            PrivacyConfig(
                target_delta=self.delta,
                population_size=clients,
                neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
                sampling_method=SamplingMethod.NO_AMPLIFICATION,
                max_epsilon=self.max_epsilon,
            )
        )
        if self.releases:
            accountant.compose(self._event(clients), self.releases)
        return accountant

    def _event(self, clients: int) -> GaussianPrivacyEvent:
        return GaussianPrivacyEvent(self.noise_multiplier, clients, clients)


class _Begun(flower.FedAvg):
    """A FedAvg whose round has begun: nobody is left to be asked."""

    def __init__(self, messages: list[Message]) -> None:
        super().__init__()
        self.messages = messages

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The transport is ours."""
        return self.messages


def _flat(state: State, names: Sequence[str]) -> Tensor:
    return torch.cat([state[name].double().flatten() for name in names])


def _moved(update: Update, names: Sequence[str], before: Tensor) -> Tensor:
    """Flower divides by an update's length, so one that did not move is moved by a hair."""
    after = _flat(update.shared, names)
    if torch.equal(after, before):
        after[0] += HAIR * (1 + after[0].abs())
    return after


def entropy() -> NDArray[np.uint32]:
    """As much as the generator can hold, from the system."""
    return np.frombuffer(os.urandom(4 * STATE_WORDS), np.uint32)


@contextmanager
def _fresh_noise() -> Iterator[None]:
    """Flower draws from numpy's global generator: fill it with entropy, then put it back for everyone else."""
    held = np.random.get_state()
    np.random.seed(entropy())
    try:
        yield
    finally:
        np.random.set_state(held)
