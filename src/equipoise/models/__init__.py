"""Models and their blocks. A method may share some blocks and keep others at the clients."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from equipoise.models.blocks import blocks_of, check_trainable, with_head
from equipoise.models.cnn import cnn, cnn1d, resnet18
from equipoise.models.linear import linear, mlp
from equipoise.models.lstm import lstm
from equipoise.models.transformer import transformer

__all__ = ["MODELS", "Build", "blocks_of", "check_trainable", "with_head"]

Build = Callable[[tuple[int, ...], int], nn.Module]
"""Builds a module from (shape of a sample, number of outputs)."""

MODELS: dict[str, Build] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "cnn1d": cnn1d,
    "resnet18": resnet18,
    "lstm": lstm,
    "transformer": transformer,
}
