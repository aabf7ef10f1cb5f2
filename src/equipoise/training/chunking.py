"""Split large stacks into portions that fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from equipoise.core import LocalTrainRequest, Params, ProximalTerm, RngContext
from equipoise.training.network import Network
from equipoise.utils import pytree

Train = Callable[[Network, Tensor, LocalTrainRequest, RngContext], tuple[Params, Params]]


def portion(request: LocalTrainRequest, here: int | slice, clients: int) -> LocalTrainRequest:
    """Of a stack of so many ``clients``, what one or some of them train with."""
    pull, linear = request.proximal, request.grad_correction
    if pull is not None:
        strength, follow = (
            torch.as_tensor(value).expand(clients)[here] for value in (pull.mu, pull.anchor_lr)
        )
        pull = ProximalTerm(pytree.index(pull.anchor, here), strength, follow)
    return replace(
        request,
        params=pytree.index(request.params, here),
        epochs=request.epochs[here],
        lr=request.lr[here],
        proximal=pull,
        grad_correction=None if linear is None else pytree.index(linear, here),
        aux=pytree.index(request.aux, here),
    )


def fit_in_portions(
    train: Train,
    task: Network,
    ids: Tensor,
    request: LocalTrainRequest,
    rng: RngContext,
    at_once: int,
) -> tuple[Params, Params]:
    """``train`` of at most so many clients at once, whose activations are in memory together."""
    if len(ids) <= at_once:
        return train(task, ids, request, rng)
    cuts = [slice(first, first + at_once) for first in range(0, len(ids), at_once)]
    parts = (train(task, ids[here], portion(request, here, len(ids)), rng) for here in cuts)
    return pytree.concat_stream(parts, len(ids))
