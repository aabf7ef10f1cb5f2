"""How steep the loss is where a model stands: the squared norm of its gradient on one batch of training rows."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.core import Params, RngContext
from equipoise.training import batching
from equipoise.training.network import Network
from equipoise.utils import rng as random
from equipoise.utils import rng as streams


def steepness(task: Network, client: Tensor, params: Params, rng: RngContext) -> Tensor:
    """One client's, on the first batch of its training this round."""
    x, y, weight = (value[0] for value in _first_batch(task, client.reshape(1), rng))
    with torch.enable_grad():
        leaves = _leaves(task, params)
        loss = (task.losses({**params, **leaves}, x, y, {}) * weight).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
    return torch.stack([g.double().square().sum() for g in gradients]).sum()


def steepness_stack(task: Network, ids: Tensor, params: Params, rng: RngContext) -> Tensor:
    """The same ``[K]`` for a stack of clients: models do not touch each other, so one sum has all their gradients."""
    x, y, weight = _first_batch(task, ids, rng)
    with torch.enable_grad():
        leaves = _leaves(task, params)
        loss = (task.losses_stack({**params, **leaves}, x, y) * weight).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
    return torch.stack([g.double().square().flatten(1).sum(1) for g in gradients]).sum(0)


def _leaves(task: Network, params: Params) -> Params:
    """What gradients move."""
    return {
        name: value.detach().requires_grad_()
        for name, value in params.items()
        if name not in task.batch_stat_names
    }


def _first_batch(task: Network, ids: Tensor, rng: RngContext) -> tuple[Tensor, Tensor, Tensor]:
    """Prepared rows, labels and weights, each ``[K, B, ...]``; padding has the weight zero."""
    split, size = task.data.split(ids.numpy(), "train"), rng.training.batch_size
    key = random.keys(rng.seed, ids.numpy(), rng.round, streams.BATCHES[0])
    plan = batching.plan(key, split.size, torch.ones_like(ids).numpy(), size)
    rows = torch.from_numpy(split.start[:, None] + plan.rows[0])
    counts = torch.full_like(ids, size) if plan.counts is None else torch.from_numpy(plan.counts[0])
    weight = (torch.arange(size) < counts[:, None]) / counts[:, None].double()
    x = split.x[rows.reshape(-1)].view(*rows.shape, *split.x.shape[1:])
    y = task.objective.marked(split.y[rows], weight > 0)
    return task.prepare(x), y.to(task.device), weight.to(task.device, task.dtype)
