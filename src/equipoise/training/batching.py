"""Which rows a client sees at each local step: the same for every executor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.utils import rng


@dataclass
class Plan:
    """Batches of K clients: step ``s`` of client ``k`` reads its rows ``rows[s, k, :counts[s, k]]``.

    ``counts`` is ``None`` when every batch is full. Clients with fewer ``steps`` have meaningless rows behind.
    """

    rows: NDArray[np.int64]
    counts: NDArray[np.int64] | None
    steps: NDArray[np.int64]


def batches_per_epoch(sizes: NDArray[np.int64], batch_size: int) -> NDArray[np.int64]:
    return -(-sizes // batch_size)


def words(key: rng.UInt, plan: Plan, repeat: int) -> Tensor:
    """``[S, K]``: a random word for every step of every client, as signed numbers."""
    return torch.from_numpy(rng.bits(key, len(plan.rows) * repeat).view(np.int64).T)


def plan(
    key: rng.UInt, sizes: NDArray[np.int64], epochs: NDArray[np.int64], batch_size: int
) -> Plan:
    """A fresh order of a client's rows each epoch; the last batch of an epoch may be short."""
    per_epoch = batches_per_epoch(sizes, batch_size)
    steps = epochs * per_epoch
    most = int(steps.max(initial=0))
    if most == 0:
        return Plan(np.zeros((0, len(sizes), batch_size), np.int64), None, steps)
    orders = rng.permutations(key, sizes, int(epochs.max()))
    clients, n_epochs, n = orders.shape
    if (per_epoch == per_epoch[0]).all():
        short = int(per_epoch[0]) * batch_size - n
        if short:
            orders = np.pad(orders, ((0, 0), (0, 0), (0, short)))
        rows = orders.reshape(clients, n_epochs * int(per_epoch[0]), batch_size).swapaxes(0, 1)
        batch = np.arange(n_epochs * int(per_epoch[0]))[:, None] % per_epoch
    else:
        step = np.arange(most)[:, None]
        epoch, batch = step // per_epoch, step % per_epoch
        within = np.minimum(batch[..., None] * batch_size + np.arange(batch_size), n - 1)
        rows = orders[
            np.arange(clients)[None, :, None], np.minimum(epoch, n_epochs - 1)[..., None], within
        ]
    counts = np.minimum(batch_size, sizes - batch * batch_size)
    if (counts == batch_size).all():
        return Plan(np.ascontiguousarray(rows), None, steps)
    return Plan(
        np.minimum(rows, (sizes - 1)[:, None]), counts, steps
    )  # padding repeats a row of the client's own
