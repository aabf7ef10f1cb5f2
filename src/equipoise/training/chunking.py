"""Train large stacks of clients in chunks that fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from equipoise.core import LocalTrainRequest, Params, ProximalTerm, RngContext
from equipoise.training.network import Network
from equipoise.utils import pytree

TrainFn = Callable[[Network, Tensor, LocalTrainRequest, RngContext], tuple[Params, Params]]
"""Trains the clients `ids [K]`: (task, ids, request, rng) to (parameters, anchor), `[K, ...]`."""


def slice_request(
    request: LocalTrainRequest, which: int | slice, num_clients: int
) -> LocalTrainRequest:
    """Return the request of one or some clients of a stack.

    Args:
        request: Request of all clients, with leading axes `[K, ...]`.
        which: Position of one client, or a slice of positions.
        num_clients: Number K of clients of the stack.

    Returns:
        The request of these clients; without a client axis if `which` is an int.
    """
    proximal = request.proximal
    if proximal is not None:
        mu = torch.as_tensor(proximal.mu).expand(num_clients)[which]
        anchor_lr = torch.as_tensor(proximal.anchor_lr).expand(num_clients)[which]
        proximal = ProximalTerm(pytree.index(proximal.anchor, which), mu, anchor_lr)
    grad_correction = request.grad_correction
    if grad_correction is not None:
        grad_correction = pytree.index(grad_correction, which)
    return replace(
        request,
        params=pytree.index(request.params, which),
        epochs=request.epochs[which],
        lr=request.lr[which],
        proximal=proximal,
        grad_correction=grad_correction,
        aux=pytree.index(request.aux, which),
    )


def fit_in_chunks(
    train: TrainFn,
    task: Network,
    ids: Tensor,
    request: LocalTrainRequest,
    rng: RngContext,
    chunk_size: int,
) -> tuple[Params, Params]:
    """Train a stack in chunks, so that the activations of at most one chunk are in memory.

    Args:
        train: Trains one chunk.
        task: Network and data.
        ids: Client numbers, `[K]`.
        request: Request of all clients, `[K, ...]`.
        rng: Seed and round.
        chunk_size: Largest number of clients of a chunk.

    Returns:
        Trained parameters and anchors, `[K, ...]`.
    """
    num_clients = len(ids)
    if num_clients <= chunk_size:
        return train(task, ids, request, rng)
    chunks = [slice(first, first + chunk_size) for first in range(0, num_clients, chunk_size)]
    results = (
        train(task, ids[chunk], slice_request(request, chunk, num_clients), rng) for chunk in chunks
    )
    return pytree.concat_stream(results, num_clients)
