"""Small models as a run and `sofed fit` leave them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sofed_flwr.classifier.model import Classifier
from sofed_flwr.config.instantiate import build
from sofed_flwr.encoder import FrozenEncoder, rebuilt

SMALL = {"_target_": "sofed_flwr.models.encoders.resnet", "blocks": [1, 1], "width": 4, "stem": "half"}
FACTS = {"method": "sofed", "policy": "importance", "dataset": "shapes", "clients": 4, "rounds": 10, "seed": 0}


def encoder_of(architecture: dict[str, Any] = SMALL, size: int = 16, **facts: Any) -> FrozenEncoder:
    """Untrained, but with BatchNorm statistics that are not the initial ones."""
    torch.manual_seed(0)
    backbone: nn.Module = build(architecture, "encoder")
    for name, tensor in backbone.state_dict().items():
        if name.endswith("running_mean"):
            tensor.uniform_(-0.1, 0.1)
        elif name.endswith("running_var"):
            tensor.uniform_(0.5, 1.5)
    return rebuilt(backbone.state_dict(), {"architecture": architecture, "image_size": [size, size], **FACTS, **facts})


def classifier_of(encoder: FrozenEncoder, classes: tuple[str, ...] = ("ant", "bee", "cat"), **facts: Any) -> Classifier:
    torch.manual_seed(1)
    return Classifier(encoder, nn.Linear(encoder.feature_dim, len(classes)), classes, facts)


def unwatched(items: Sequence[Any], what: str) -> Sequence[Any]:
    """Instead of a progress bar."""
    return items
