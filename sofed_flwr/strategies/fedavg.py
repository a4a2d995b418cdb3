"""FedAvg as in Algorithm 1: W ← Σ W_k / K, BatchNorm statistics included.

The paper's section II-B quotes the mean weighted by data size, but its algorithm does not use it.
"""

from flwr.serverapp import strategy as flower

from sofed_flwr.strategies.inner import InnerStrategy


def fedavg() -> InnerStrategy:
    """The 1/K mean."""
    return InnerStrategy(flower.FedAvg())
