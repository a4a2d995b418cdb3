"""The encoder people take away: backbone weights and what is needed to rebuild the backbone, in one safetensors file.

>>> encoder = load_encoder("encoder.safetensors")
>>> features = encoder.features(images)  # uint8 (n, 3, H, W) -> (n, d)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sofed_flwr.component import Component, build
from sofed_flwr.store import read_file, write_file
from sofed_flwr.views import MEAN, STD, network_input


class FrozenEncoder(nn.Module):
    """A backbone for use, not for training."""

    def __init__(self, backbone: nn.Module, facts: Mapping[str, Any]) -> None:
        super().__init__()
        self.backbone = backbone.to(memory_format=torch.channels_last).requires_grad_(False)
        self.facts = facts
        self.eval()

    @torch.inference_mode()
    def features(self, images: Tensor) -> Tensor:
        """Pixels uint8 (n, 3, H, W) -> features (n, d); normalisation is included."""
        features: Tensor = self.backbone(network_input(images.to(next(self.backbone.parameters()).device)))
        return features


def save_encoder(path: Path, backbone: nn.Module, encoder: Component, facts: Mapping[str, Any]) -> None:
    """`encoder` is the yaml the backbone was built from, `facts` whatever a reader should know of its training."""
    meta = {"architecture": encoder, "normalisation": {"mean": MEAN, "std": STD}, **facts}
    write_file(path, backbone.state_dict(), meta)


def load_encoder(path: str | Path) -> FrozenEncoder:
    """Rebuild what `save_encoder` wrote."""
    state, meta = read_file(Path(path))
    backbone: nn.Module = build(meta["architecture"], "encoder")
    backbone.load_state_dict(state)
    return FrozenEncoder(backbone, meta)
