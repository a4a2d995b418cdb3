"""ResNets: images (n, 3, H, W) -> features (n, `feature_dim`).

Names inside follow torchvision's, so its weights load where widths agree. Three stems for three budgets: `cifar` keeps
a 32-pixel image large (3x3, stride 1, no pooling), `half` halves it (stride 2: a quarter of the work), `imagenet` is
the original 7x7, stride 2 and pooled (a sixteenth), meant for images of 100 pixels and more.

torchvision is not imported: it imports torch's compiler, a third of the time a device's process needs before it trains
(see `device/optimizer.py`), and every round starts a new process.
"""

from typing import Annotated, Literal

from pydantic import Field, validate_call
from torch import Tensor, nn

Stem = Literal["cifar", "half", "imagenet"]
Width = Annotated[int, Field(ge=1, le=4096)]
Blocks = Annotated[list[Annotated[int, Field(ge=1, le=40)]], Field(min_length=1, max_length=5)]
"""Bounded, since an encoder file is untrusted: modules take memory before a weight is read."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al. 2015); `downsample` fits the shortcut to the output's size."""

    def __init__(self, into: int, out: int, stride: int = 1, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = downsample

    def forward(self, images: Tensor) -> Tensor:
        """Residual and shortcut, rectified together."""
        shortcut = images if self.downsample is None else self.downsample(images)
        x: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(images)))))
        return self.relu(x + shortcut)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """Basic blocks, any number of them per stage, of any base width."""

    feature_dim: int

    @validate_call
    def __init__(self, blocks: Blocks, width: Width, stem: Stem) -> None:
        super().__init__()
        kernel, stride = {"cifar": (3, 1), "half": (3, 2), "imagenet": (7, 2)}[stem]
        self.conv1 = nn.Conv2d(3, width, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem == "imagenet" else nn.Identity()
        widths = [width * 2**stage for stage in range(len(blocks))]
        for stage, (count, out) in enumerate(zip(blocks, widths, strict=True), start=1):
            into = widths[max(stage - 2, 0)]
            setattr(self, f"layer{stage}", _stage(into, out, count, stride=1 if stage == 1 else 2))
        self.stages = len(blocks)
        self.feature_dim = widths[-1]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Stem, stages, global average."""
        x: Tensor = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for stage in range(1, self.stages + 1):
            x = getattr(self, f"layer{stage}")(x)
        return x.mean(dim=(2, 3))


def _stage(into: int, out: int, count: int, stride: int) -> nn.Sequential:
    shortcut = None
    if stride != 1 or into != out:
        shortcut = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))
    rest = [BasicBlock(out, out) for _ in range(count - 1)]
    return nn.Sequential(BasicBlock(into, out, stride, shortcut), *rest)


resnet = ResNet
"""Its name in yaml and encoder files."""
