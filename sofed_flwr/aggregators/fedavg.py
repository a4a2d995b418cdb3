"""FedAvg as in Algorithm 1: W ← Σ W_k / K.

The plain mean over online encoder and predictor, BatchNorm statistics included. The paper's section II-B quotes the
mean weighted by data size, but its algorithm does not use it; here no weight a device could report is trusted.
"""

from collections.abc import Sequence

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from sofed_flwr.contracts import State, Update


@dataclass(frozen=True)
class FedAvg:
    """The 1/K mean."""

    def aggregate(self, updates: Sequence[Update], current: State) -> State:
        """Average tensor by tensor, adding one update at a time: K models never stand in memory side by side."""
        return {name: _mean([update.shared[name] for update in updates]) for name in current}


def _mean(tensors: list[Tensor]) -> Tensor:
    """Floats in float32 whatever they travelled as; integer counters stay integers."""
    dtype = tensors[0].dtype
    total = torch.zeros_like(tensors[0], dtype=torch.float32 if dtype.is_floating_point else dtype)
    for tensor in tensors:
        total += tensor
    mean = total / len(tensors) if dtype.is_floating_point else total // len(tensors)
    return mean.to(dtype)
