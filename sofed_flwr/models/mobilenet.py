"""MobileNetV3-Small: images (n, 3, H, W) -> features (n, 576).

It has GroupNorm where torchvision has BatchNorm (Hsieh et al., arXiv 1910.00189, for federated learning). A mean of the
devices' running statistics does not belong to the mean of their weights. In ResNet-8 that does little harm; here it
adds up over 34 layers: with BatchNorm, after one round of 30 steps on two devices, the spread of the features was 0.055
in evaluation mode and 0.79 with the statistics of the batch, a nearly linear network with the kNN accuracy of the
pixels. Figures with GroupNorm: conf/encoder/mobilenet_v3_small.yaml.
"""

from typing import Literal

from pydantic import validate_call
from torch import Tensor, nn
from torchvision import models

Stem = Literal["cifar", "imagenet"]
GROUPS = 8
"""A divisor of every number of channels in this network."""


class MobileNetV3Small(nn.Module):
    """torchvision's MobileNetV3-Small without its classifier; the `cifar` stem has stride 1 instead of 2."""

    feature_dim: int

    @validate_call
    def __init__(self, stem: Stem) -> None:
        super().__init__()
        self.features = models.mobilenet_v3_small(weights=None, norm_layer=_group_norm).features
        if stem == "cifar":
            self.features[0][0].stride = (1, 1)
        self.feature_dim = 576

    def forward(self, images: Tensor) -> Tensor:
        """Convolutions, global average."""
        x: Tensor = self.features(images)
        return x.mean(dim=(2, 3))


mobilenet_v3_small = MobileNetV3Small
"""Its name in yaml and encoder files."""


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(GROUPS, channels)
