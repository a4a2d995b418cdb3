"""The processor that a process trains and scores on."""

import torch

from sofed_flwr.config.schema import RunConfig
from sofed_flwr.core.errors import ConfigError


def torch_device(config: RunConfig) -> torch.device:
    """Where to compute."""
    wanted = config.device.accelerator
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device.accelerator=cuda: torch finds no CUDA device here; use auto or cpu")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")
