"""Portions of a stack of clients: one client's part of what they train with, or that of a few who fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from equipoise.contract import Fit, Pull, Tree, When
from equipoise.core import trees
from equipoise.learners.network import Network

Train = Callable[[Network, Tensor, Fit, When], tuple[Tree, Tree]]
"""The local training of a stack of clients."""


def portion(fit: Fit, here: int | slice, clients: int) -> Fit:
    """Of a stack of so many ``clients``, what one or some of them train with."""
    pull, linear = fit.pull, fit.linear
    if pull is not None:
        strength, follow = (torch.as_tensor(value).expand(clients)[here] for value in (pull.strength, pull.follow))
        pull = Pull(trees.row(pull.anchor, here), strength, follow)
    return replace(
        fit,
        params=trees.row(fit.params, here),
        epochs=fit.epochs[here],
        lr=fit.lr[here],
        pull=pull,
        linear=None if linear is None else trees.row(linear, here),
        aux=trees.row(fit.aux, here),
    )


def fit_in_portions(train: Train, task: Network, ids: Tensor, fit: Fit, when: When, at_once: int) -> tuple[Tree, Tree]:
    """``train`` of at most so many clients at once, whose activations are in memory together."""
    if len(ids) <= at_once:
        return train(task, ids, fit, when)
    cuts = [slice(first, first + at_once) for first in range(0, len(ids), at_once)]
    parts = (train(task, ids[here], portion(fit, here, len(ids)), when) for here in cuts)
    return trees.gathered(parts, len(ids))
