"""FedAvg as in Algorithm 1: W ← Σ W_k / K.

The plain mean over online encoder and predictor, BatchNorm statistics included. The paper's section II-B quotes the
mean weighted by data size, but its algorithm does not use it; here no weight a device could report is trusted.
"""

from collections.abc import Sequence

from pydantic.dataclasses import dataclass

from sofed_flwr.aggregators.base import Stateless, mean
from sofed_flwr.contracts import State, Update


@dataclass(frozen=True)
class FedAvg(Stateless):
    """The 1/K mean."""

    def aggregate(self, updates: Sequence[Update], current: State) -> State:
        """Every tensor alike."""
        return mean(updates, current)
