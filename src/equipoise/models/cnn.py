"""Convolutional models for images ``[C, H, W]`` and for windows of time series ``[C, steps]``."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from equipoise.models.blocks import with_head
from equipoise.utils.errors import UsageError

GROUPS = 32  # as in the paper that proposes GroupNorm (Wu and He, 2018, arXiv:1803.08494)


def cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build a CNN: two 5x5 convolutions (16, 32) with pooling, 128 hidden units, and the head.

    Args:
        shape: Shape of an image ``[C, H, W]``.
        classes: Number of outputs.

    Returns:
        A module with the blocks ``backbone`` and ``head``.
    """
    channels, height, width = _image_shape(shape, "cnn", 4)
    layers: list[tuple[str, nn.Module]] = [
        ("conv1", nn.Conv2d(channels, 16, 5, padding=2)),
        # Pooling before ReLU, with which it commutes, costs a quarter of the work.
        ("pool1", nn.MaxPool2d(2)),
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
    """Build a 1D CNN: two convolutions over time (32, 64), pooling, mean over time, and the head.

    Args:
        shape: Shape of a window ``[C, steps]``.
        classes: Number of outputs.

    Returns:
        A module with the blocks ``backbone`` and ``head``.

    Raises:
        UsageError: If samples are no windows, or too short.
    """
    if len(shape) != 2 or shape[1] < 16:
        raise UsageError(
            f"model 'cnn1d' takes windows [C, steps] of 16 steps or more, and samples have shape "
            f"{list(shape)}: choose another model, or a longer window"
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
    """Build a ResNet-18 with GroupNorm instead of batch normalisation.

    Args:
        shape: Shape of an image ``[C, H, W]``.
        classes: Number of outputs.

    Returns:
        A module with the blocks ``backbone`` and ``head``.
    """
    return with_head(_ResNet18(_image_shape(shape, "resnet18", 8)[0], classes), "head")


class _ResidualUnit(nn.Module):
    """Two 3x3 convolutions with a skip connection (a 1x1 convolution where the shape changes)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(GROUPS, out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, out_channels)
        self.relu = nn.ReLU()
        self.short: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.short = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.GroupNorm(GROUPS, out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, in, H, W]`` to ``[B, out, H / stride, W / stride]``."""
        y = self.relu(self.norm1(self.conv1(x)))
        out: Tensor = self.relu(self.norm2(self.conv2(y)) + self.short(x))
        return out


class _ResNet18(nn.Module):
    """A 7x7 convolution, eight residual units, pooling over the image, and a linear head."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
            nn.GroupNorm(GROUPS, 64),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        units: list[nn.Module] = []
        in_channels = 64
        for out_channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            units += [
                _ResidualUnit(in_channels, out_channels, stride),
                _ResidualUnit(out_channels, out_channels, 1),
            ]
            in_channels = out_channels
        self.units = nn.Sequential(*units)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``[B, C, H, W]`` to logits ``[B, classes]``."""
        out: Tensor = self.head(self.pool(self.units(self.stem(x))).flatten(1))
        return out


def _image_shape(shape: tuple[int, ...], name: str, min_side: int) -> tuple[int, int, int]:
    """Return channels, height and width; refuse samples that are no images, or too small."""
    if len(shape) != 3 or min(shape[1:]) < min_side:
        raise UsageError(
            f"model '{name}' takes images [C, H, W], and samples have shape {list(shape)}: choose "
            "another"
        )
    channels, height, width = shape
    return channels, height, width
