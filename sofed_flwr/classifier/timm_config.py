"""The fields of config.json that timm reads: `timm.create_model("local-dir:DIR", pretrained=True)`.

timm builds the network by its own name for it, so a network gets such a name only where it is timm's to the last layer;
every other one has a name that timm refuses as unknown. Its transforms come out as ours: the middle square, bicubic,
one mean and deviation for all colours.
"""

from collections.abc import Sequence
from typing import Any

from sofed_flwr.config.instantiate import Component
from sofed_flwr.encoder import FrozenEncoder
from sofed_flwr.views.pixels import MEAN, STD

NAMES = {(2, 2, 2, 2): "resnet18", (3, 4, 6, 3): "resnet34"}
"""Blocks per stage -> timm's name, at torchvision's width and stem."""


def timm_config(encoder: FrozenEncoder, classes: Sequence[str]) -> dict[str, Any]:
    """Without classes it is an encoder: timm gives features instead of logits."""
    size = {} if encoder.image_size is None else {"input_size": [3, *encoder.image_size]}
    return {
        "architecture": timm_name(encoder.facts["architecture"]),
        "num_classes": len(classes),
        "num_features": encoder.feature_dim,
        "global_pool": "avg",
        "pretrained_cfg": {
            **size,
            "fixed_input_size": False,
            "interpolation": "bicubic",
            "crop_pct": 1.0,
            "crop_mode": "center",
            "mean": [MEAN] * 3,
            "std": [STD] * 3,
            "num_classes": len(classes),
            "pool_size": None,
            "first_conv": next(name for name, _ in encoder.backbone.named_parameters()).removesuffix(".weight"),
            "classifier": "fc",
        },
        **({"label_names": list(classes)} if classes else {}),
    }


def timm_name(architecture: Component) -> str:
    """timm's name of a network, or one that is not timm's."""
    kind = str(architecture["_target_"]).rpartition(".")[2].lower()
    if (kind, architecture.get("stem"), architecture.get("width")) == ("resnet", "imagenet", 64):
        return NAMES.get(tuple(architecture["blocks"]), "sofed_resnet")
    return f"sofed_{kind}"
