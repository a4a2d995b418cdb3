"""How far two encoders are apart, as FedU and FedEMA measure it."""

import torch
from torch import nn

from sofed_flwr.core.records import State


def divergence(encoder: nn.Module, first: State, second: State) -> float:
    """Mean over the spatial convolutions of ||W_first - W_second||, not squared.

    The authors' code takes the weights with "conv" in their name: all of a ResNet's convolutions but the 1x1 ones of
    its shortcuts. The size of the kernel says the same and holds for any backbone. States are named as in `encoder`.
    """
    weights = [
        f"{name}.weight"
        for name, module in encoder.named_modules()
        if isinstance(module, nn.Conv2d) and max(module.kernel_size) > 1
    ]
    return float(torch.stack([(first[name] - second[name]).norm() for name in weights]).mean())
