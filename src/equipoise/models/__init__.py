"""Models and their blocks. A method may share some blocks and keep others at the clients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import nn

from equipoise.models.blocks import blocks_of, check_trainable, with_head
from equipoise.models.cnn import cnn, cnn1d, resnet18
from equipoise.models.linear import linear, mlp
from equipoise.models.lstm import lstm
from equipoise.models.transformer import transformer

__all__ = ["MODELS", "TREES", "Build", "blocks_of", "check_trainable", "with_head"]

Build = Callable[[tuple[int, ...], int], nn.Module]
"""Builds a module from (shape of a sample, number of outputs)."""

TREES = "trees"
"""Name of the ensemble of trees, which is no network."""


def trees(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Build an ensemble of trees, which takes the sizes of the arrays that are loaded into it.

    Args:
        shape: Shape of a sample.
        outputs: Number of outputs.

    Returns:
        The ensemble.
    """
    from equipoise.trees.config import TreeOptions
    from equipoise.trees.ensemble import TreeEnsemble, empty_params

    smallest = TreeOptions(trees=1, tree_depth=1, tree_bins=2)
    return TreeEnsemble(outputs, empty_params(np.zeros(shape[0], np.int64), 1, smallest, 1))


MODELS: dict[str, Build] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "cnn1d": cnn1d,
    "resnet18": resnet18,
    "lstm": lstm,
    "transformer": transformer,
    TREES: trees,
}
