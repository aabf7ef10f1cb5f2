"""Models for images ``[C, H, W]`` and for windows of recordings ``[C, steps]``."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from equipoise.models.blocks import with_head
from equipoise.utils.errors import UsageError

GROUPS = 32  # as in the paper that proposes GroupNorm (Wu, He 2018)


def cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two 5x5 convolutions (16, 32) with pooling, 128 hidden units (backbone), and the classifier (head)."""
    channels, height, width = _image(shape, "cnn", 4)
    layers: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(channels, 16, 5, padding=2)),
        ("pool1", nn.MaxPool2d(2)),  # before ReLU, with which it commutes: a quarter of the work
        ("relu1", nn.ReLU()),
        ("conv2", nn.Conv2d(16, 32, 5, padding=2)),
        ("pool2", nn.MaxPool2d(2)),
        ("relu2", nn.ReLU()),
        ("flatten", nn.Flatten()),
        ("hidden", nn.Linear(32 * (height // 4) * (width // 4), 128)),
        ("relu3", nn.ReLU()),
        ("head", nn.Linear(128, classes)),
    ]
    return with_head(nn.Sequential(OrderedDict(layers)), "head")


def cnn1d(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two convolutions over time (32, 64 channels) with pooling, their mean over time (backbone), classifier (head)."""
    if len(shape) != 2 or shape[1] < 16:
        raise UsageError(
            f"model 'cnn1d' takes windows [C, steps] of 16 steps or more, and samples have shape {list(shape)}: choose "
            "another model, or a longer window"
        )
    layers: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv1d(shape[0], 32, 7, padding=3)),
        ("pool1", nn.MaxPool1d(2)),
        ("relu1", nn.ReLU()),
        ("conv2", nn.Conv1d(32, 64, 5, padding=2)),
        ("pool2", nn.MaxPool1d(2)),
        ("relu2", nn.ReLU()),
        ("mean", nn.AdaptiveAvgPool1d(1)),
        ("flatten", nn.Flatten()),
        ("head", nn.Linear(64, classes)),
    ]
    return with_head(nn.Sequential(OrderedDict(layers)), "head")


def resnet18(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-18 with GroupNorm: a 7x7 convolution, eight residual units, two poolings (backbone), classifier (head)."""
    return with_head(_ResNet18(_image(shape, "resnet18", 8)[0], classes), "head")


class _Unit(nn.Module):
    """Two 3x3 convolutions around which the input is added; a 1x1 convolution fits it where the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(GROUPS, outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, outside)
        self.relu = nn.ReLU()
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.short = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.GroupNorm(GROUPS, outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        out: Tensor = self.relu(self.norm2(self.conv2(y)) + self.short(x))
        return out


class _ResNet18(nn.Module):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
            nn.GroupNorm(GROUPS, 64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        units: list[nn.Module] = []
        inside = 64
        for outside, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            units += [_Unit(inside, outside, stride), _Unit(outside, outside, 1)]
            inside = outside
        self.units = nn.Sequential(*units)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.pool(self.units(self.stem(x))).flatten(1))
        return out


def _image(shape: tuple[int, ...], name: str, smallest: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise UsageError(
            f"model '{name}' takes images [C, H, W], and samples have shape {list(shape)}: choose another"
        )
    return shape[0], shape[1], shape[2]
