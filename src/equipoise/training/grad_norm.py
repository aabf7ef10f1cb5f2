"""Squared gradient norm of a model on the first training batch of a round."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.core import Params, RngContext
from equipoise.training import batching
from equipoise.training.network import Network
from equipoise.utils import rng as random


def grad_sq_norm(task: Network, client: Tensor, params: Params, rng: RngContext) -> Tensor:
    """Compute `||grad loss(params)||^2` of one client.

    Args:
        task: Network and data.
        client: Client number, a scalar tensor.
        params: Model of the client.
        rng: Seed and round, which determine the batch.

    Returns:
        A scalar float64 tensor.
    """
    x, y, weight = (value[0] for value in _first_batch(task, client.reshape(1), rng))
    with torch.enable_grad():
        leaves = _trainable_leaves(task, params)
        loss = (task.losses({**params, **leaves}, x, y, {}) * weight).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
    return torch.stack([g.double().square().sum() for g in gradients]).sum()


def grad_sq_norm_stack(task: Network, ids: Tensor, params: Params, rng: RngContext) -> Tensor:
    """Compute `grad_sq_norm` of K clients in one backward pass.

    The models are independent, so the gradient of the summed loss contains each one's gradient.

    Args:
        task: Network and data.
        ids: Client numbers, `[K]`.
        params: Models, `[K, ...]`.
        rng: Seed and round, which determine the batches.

    Returns:
        Squared norms `[K]`, float64.
    """
    x, y, weight = _first_batch(task, ids, rng)
    with torch.enable_grad():
        leaves = _trainable_leaves(task, params)
        loss = (task.losses_stack({**params, **leaves}, x, y) * weight).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
    return torch.stack([g.double().square().flatten(1).sum(1) for g in gradients]).sum(0)


def _trainable_leaves(task: Network, params: Params) -> Params:
    """Return the parameters that have gradients, as leaves of a new graph."""
    return {
        name: value.detach().requires_grad_()
        for name, value in params.items()
        if name not in task.info.batch_stat_names
    }


def _first_batch(task: Network, ids: Tensor, rng: RngContext) -> tuple[Tensor, Tensor, Tensor]:
    """Return prepared inputs, targets and weights, `[K, B, ...]`; padding has weight 0."""
    split = task.data.split(ids.numpy(), "train")
    batch_size = rng.training.batch_size
    key = random.keys(rng.seed, ids.numpy(), rng.round, random.BATCHES[0])
    plan = batching.plan_batches(key, split.size, torch.ones_like(ids).numpy(), batch_size)
    rows = torch.from_numpy(split.start[:, None] + plan.rows[0])
    if plan.counts is None:
        counts = torch.full_like(ids, batch_size)
    else:
        counts = torch.from_numpy(plan.counts[0])
    weight = (torch.arange(batch_size) < counts[:, None]) / counts[:, None].double()
    x = split.x[rows.reshape(-1)].view(*rows.shape, *split.x.shape[1:])
    y = task.objective.mask_padding(split.y[rows], weight > 0)
    return task.prepare(x), y.to(task.device), weight.to(task.device, task.dtype)
