"""Which tensors of a model are trained, as against measured (BatchNorm's running statistics) and counted (integers)."""

from torch import Tensor

STATISTICS = ("running_mean", "running_var")


def is_parameter(name: str, tensor: Tensor) -> bool:
    """By name and type: a state has no other mark."""
    return tensor.is_floating_point() and not name.endswith(STATISTICS)
