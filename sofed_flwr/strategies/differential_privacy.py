"""Client-level differential privacy: Flower's server-side fixed clipping around FedAvg, with Flower's RDP accountant.

The guarantee (McMahan et al. 2018): all global models of the run together reveal little of what any single device
contributed: with one device's updates left out, every conclusion is at most e^epsilon times as likely, except with
probability delta. It holds against anybody who sees global models, including the other devices. It does not
hold against the server, which sees every update and is trusted (central DP).

Outside the guarantee: BatchNorm's running statistics and integer counters, which take the plain mean (noise would
make variances negative); the devices' counters in the server's metrics log; and who took part. No amplification by
sampling is claimed, because every device is asked in every round. Noise is ordinary floating-point noise.

The noise is computed for the mean over the devices that replied; a round with fewer than `clients` of them releases
nothing and costs nothing. It is drawn from the system's entropy and never from the run's seed: the seed is in the
configuration that every device gets, and noise that can be recomputed hides nothing. So a repeated round differs, and
it costs the budget again: the model may have been sent before the crash that lost its round.

Epsilon is computed from the ledger of releases (`privacy_ledger.py`), each with the noise it had, over all resumes and
lost checkpoints. If a model was sent without noise, because another strategy made some of the rounds, nothing is
guaranteed: epsilon is then infinite.

Adaptive clipping is left out: in Flower 1.39 it has no accountant, moves the clipping norm away from its target, and
draws noise for the norm after that move instead of the one that clipped.
"""

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from flwr.app import Message
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

from sofed_flwr.core.records import Noise, Release, State, Update
from sofed_flwr.core.state_dicts import is_parameter
from sofed_flwr.strategies.inner import InnerStrategy

try:
    import dp_accounting  # noqa: F401 (what Flower's accountant needs)
except ImportError as error:
    raise ImportError("dp-accounting is not installed; pip install 'sofed-flwr[dp]'") from error

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
JOINED = "parameters"
SMALLEST_MOVE = 1e-12
STATE_WORDS = 624
"""Of numpy's global generator, 32 bits each."""


class FixedClipping(InnerStrategy):
    """W ← W + mean of updates, each clipped to `clipping_norm`, + noise of std noise_multiplier clipping_norm / K."""

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
        super().__init__(
            self._wrapper(clients), min_replies=clients, parameters_only=True, bounded=True, dtype=torch.float64
        )
        if clients > 1 and delta >= 1 / clients:
            raise ValueError(
                f"delta={delta:g}: with {clients} devices, revealing one of them fully is a delta of 1/{clients}"
            )
        if (reason := self.exhausted([])) is not None:
            raise ValueError(f"max_epsilon={max_epsilon:g}: {reason}")

    def aggregate(self, replies: Mapping[int, Message], updates: Sequence[Update], current: State) -> State:
        """Parameters as one vector: Flower's wrapper skips tensors without dimensions."""
        names = sorted(name for name, tensor in current.items() if is_parameter(name, tensor))
        before = _joined(current, names)
        moved = [replace(update, shared=_moved(_joined(update.shared, names), before[JOINED])) for update in updates]
        self.strategy = self._wrapper(len(updates))
        with _fresh_noise():
            result = super().aggregate(replies, moved, before)
        parts = torch.split(result.pop(JOINED), [current[name].numel() for name in names])
        result |= {name: part.view_as(current[name]) for name, part in zip(names, parts, strict=True)}
        return {name: result[name].to(tensor.dtype) for name, tensor in current.items()}

    def noise(self, clients: int) -> Noise:
        """The settings of a release."""
        return Noise(self.noise_multiplier, self.clipping_norm, clients, self.delta)

    def report(self, releases: Sequence[Release]) -> Mapping[str, float]:
        """The privacy spent so far."""
        return {"epsilon": self._epsilon(releases), "delta": self.delta}

    def exhausted(self, releases: Sequence[Release]) -> str | None:
        """Whether one more release would exceed the budget."""
        if self.max_epsilon is None:
            return None
        spent = self._epsilon(releases)
        after = self._epsilon([*releases, Release("", 0, self.noise(self.min_replies))])
        if after <= self.max_epsilon:
            return None
        if math.isinf(spent):
            return f"models were sent without noise, so max_epsilon={self.max_epsilon:g} cannot be kept"
        return (
            f"epsilon is {spent:.4g} of {self.max_epsilon:g} after {len(releases)} releases, "
            f"one more would make it {after:.4g} at delta {self.delta:g}"
        )

    def _wrapper(self, clients: int) -> flower.DifferentialPrivacyServerSideFixedClipping:
        """Without Flower's accountant: the ledger records what was spent, also across lost checkpoints."""
        return flower.DifferentialPrivacyServerSideFixedClipping(
            flower.FedAvg(), self.noise_multiplier, self.clipping_norm, clients
        )

    def _epsilon(self, releases: Sequence[Release]) -> float:
        """Epsilon of all releases together at our delta; infinite if one had no noise."""
        if any(release.noise is None for release in releases):
            return math.inf
        config = PrivacyConfig(  # without amplification the number of clients costs nothing
            target_delta=self.delta,
            population_size=self.min_replies,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
        )
        accountant = RdpAccountant(config)
        counts = Counter(release.noise.noise_multiplier for release in releases if release.noise)
        for multiplier, count in counts.items():
            accountant.compose(GaussianPrivacyEvent(multiplier, self.min_replies, self.min_replies), count)
        return accountant.get_privacy_spent().epsilon if releases else 0.0


def _joined(state: State, names: Sequence[str]) -> State:
    """The parameters as one vector, beside the statistics and counters."""
    rest = {name: tensor for name, tensor in state.items() if name not in names}
    return {JOINED: torch.cat([state[name].double().flatten() for name in names])} | rest


def _moved(state: State, before: Tensor) -> State:
    """Flower divides by an update's length, so an update of length zero is moved by a tiny amount."""
    after = state[JOINED]
    if torch.equal(after, before):
        after[0] += SMALLEST_MOVE * (1 + after[0].abs())
    return state


def entropy() -> NDArray[np.uint32]:
    """As much as the generator can hold, from the system."""
    return np.frombuffer(os.urandom(4 * STATE_WORDS), np.uint32)


@contextmanager
def _fresh_noise() -> Iterator[None]:
    """Flower draws from numpy's global generator: seed it with entropy, then restore it."""
    held = np.random.get_state()
    np.random.seed(entropy())
    try:
        yield
    finally:
        np.random.set_state(held)
