"""Batches of local training: the rows of every step, and the clients of a stack at once.

Batch plans are the same for every executor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.core import LocalTrainRequest, Params, ProximalTerm, RngContext
from equipoise.training.network import Network
from equipoise.utils import pytree, rng

MIN_NORM = 1e-30
"""Norms of gradients below count as this: a gradient of zero stays zero."""


@dataclass
class BatchPlan:
    """Batches of K clients: step `s` of client `k` reads its rows `rows[s, k, :counts[s, k]]`."""

    rows: NDArray[np.int64]
    """Row numbers within each client, `[S, K, B]`. Undefined after a client's last step."""
    counts: NDArray[np.int64] | None
    """Number of rows of each batch, `[S, K]`. None if every batch is full."""
    steps: NDArray[np.int64]
    """Number of steps of each client, `[K]`."""


def batches_per_epoch(sizes: NDArray[np.int64], batch_size: int) -> NDArray[np.int64]:
    """Return `ceil(sizes / batch_size)`, `[K]`."""
    return -(-sizes // batch_size)


def dropout_keys(key: rng.UInt, plan: BatchPlan, steps_per_batch: int) -> Tensor:
    """Draw one random key per step and client, for dropout.

    Args:
        key: Random key of each client, `[K]`.
        plan: Batch plan with S batches.
        steps_per_batch: Number of SGD steps on each batch.

    Returns:
        Random int64 words, `[S * steps_per_batch, K]`.
    """
    return torch.from_numpy(rng.bits(key, len(plan.rows) * steps_per_batch).view(np.int64).T)


def plan_batches(
    key: rng.UInt, sizes: NDArray[np.int64], epochs: NDArray[np.int64], batch_size: int
) -> BatchPlan:
    """Shuffle every client's rows anew in each epoch and cut them into batches.

    The last batch of an epoch may be smaller than `batch_size`.

    Args:
        key: Random key of each client, `[K]`.
        sizes: Number of training rows of each client, `[K]`.
        epochs: Number of epochs of each client, `[K]`.
        batch_size: Largest number of rows of a batch.

    Returns:
        The plan. Padding of short batches repeats rows of the same client.
    """
    per_epoch = batches_per_epoch(sizes, batch_size)
    steps = epochs * per_epoch
    max_steps = int(steps.max(initial=0))
    if max_steps == 0:
        return BatchPlan(np.zeros((0, len(sizes), batch_size), np.int64), None, steps)
    orders = rng.permutations(key, sizes, int(epochs.max()))  # [K, epochs, n_max]
    clients, n_epochs, n = orders.shape
    if (per_epoch == per_epoch[0]).all():
        # Equal numbers of batches: a reshape is enough.
        num_batches = int(per_epoch[0])
        padding = num_batches * batch_size - n
        if padding:
            orders = np.pad(orders, ((0, 0), (0, 0), (0, padding)))
        rows = orders.reshape(clients, n_epochs * num_batches, batch_size).swapaxes(0, 1)
        batch = np.arange(n_epochs * num_batches)[:, None] % per_epoch
    else:
        step = np.arange(max_steps)[:, None]
        epoch = np.minimum(step // per_epoch, n_epochs - 1)
        batch = step % per_epoch
        position = np.minimum(batch[..., None] * batch_size + np.arange(batch_size), n - 1)
        rows = orders[np.arange(clients)[None, :, None], epoch[..., None], position]
    counts = np.minimum(batch_size, sizes - batch * batch_size)
    if (counts == batch_size).all():
        return BatchPlan(np.ascontiguousarray(rows), None, steps)
    # Padding repeats a row of the same client.
    return BatchPlan(np.minimum(rows, (sizes - 1)[:, None]), counts, steps)


TrainFn = Callable[[Network, Tensor, LocalTrainRequest, RngContext], tuple[Params, Params]]
"""Trains the clients `ids [K]`: (task, ids, request, rng) to (parameters, anchor), `[K, ...]`."""


def slice_request(
    request: LocalTrainRequest, rows: int | slice, num_clients: int
) -> LocalTrainRequest:
    """Return the request of one or some clients of a stack.

    Args:
        request: Request of all clients, with leading axes `[K, ...]`.
        rows: Position of one client, or a slice of positions.
        num_clients: Number K of clients of the stack.

    Returns:
        The request of these clients; without a client axis if `rows` is an int.
    """
    proximal = request.proximal
    if proximal is not None:
        mu = torch.as_tensor(proximal.mu).expand(num_clients)[rows]
        anchor_lr = torch.as_tensor(proximal.anchor_lr).expand(num_clients)[rows]
        proximal = ProximalTerm(pytree.index(proximal.anchor, rows), mu, anchor_lr)
    grad_correction = request.grad_correction
    if grad_correction is not None:
        grad_correction = pytree.index(grad_correction, rows)
    return replace(
        request,
        params=pytree.index(request.params, rows),
        epochs=request.epochs[rows],
        lr=request.lr[rows],
        proximal=proximal,
        grad_correction=grad_correction,
        aux=pytree.index(request.aux, rows),
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


def without_batch_stats(task: Network, request: LocalTrainRequest) -> LocalTrainRequest:
    """Return the request with batch statistics removed from the trainable parameters."""
    trainable = tuple(name for name in request.trainable if name not in task.info.batch_stat_names)
    return replace(request, trainable=trainable)


def frozen_batch_stats(task: Network, request: LocalTrainRequest) -> Params:
    """Return the batch statistics that this request does not train: they stay as received."""
    return {
        name: request.params[name]
        for name in task.info.batch_stat_names
        if name not in request.trainable
    }
