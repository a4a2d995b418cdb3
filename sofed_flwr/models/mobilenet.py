"""MobileNetV3-Small: images (n, 3, H, W) -> features (n, 576)."""

from typing import Literal

from pydantic import validate_call
from torch import Tensor, nn
from torchvision import models

Stem = Literal["cifar", "imagenet"]


class MobileNetV3Small(nn.Module):
    """torchvision's MobileNetV3-Small without its classifier; the `cifar` stem has stride 1 instead of 2."""

    def __init__(self, stem: Stem) -> None:
        super().__init__()
        self.features = models.mobilenet_v3_small(weights=None).features
        if stem == "cifar":
            self.features[0][0].stride = (1, 1)
        self.feature_dim = 576

    def forward(self, images: Tensor) -> Tensor:
        """Convolutions, global average."""
        x: Tensor = self.features(images)
        return x.mean(dim=(2, 3))


@validate_call
def mobilenet_v3_small(stem: Stem) -> MobileNetV3Small:
    """Build a MobileNetV3-Small from its yaml."""
    return MobileNetV3Small(stem)
