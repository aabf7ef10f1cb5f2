"""How steep the loss is where a model stands: its value and squared gradient norm on one batch of training rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipoise.contract import Tree, When
from equipoise.core import random
from equipoise.learners import batches

if TYPE_CHECKING:
    from equipoise.tasks.classify import Classify


def slope(task: Classify, client: Tensor, params: Tree, when: When) -> Tree:
    """One client's: ``loss`` and ``square`` on the first batch of its training this round."""
    x, y, weight = (value[0] for value in _first_batch(task, client.reshape(1), when))
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        loss = (task.losses(leaves, x, y, {}) * weight).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
    return {"loss": loss.detach().double(), "square": sum((g.double().square().sum() for g in gradients), _zero(loss))}


def slope_stack(task: Classify, ids: Tensor, params: Tree, when: When) -> Tree:
    """The same ``[K]`` for a stack of clients: models do not touch each other, so one sum has all their gradients."""
    x, y, weight = _first_batch(task, ids, when)
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        losses = (task.losses_stack(leaves, x, y) * weight).sum(1)
        gradients = torch.autograd.grad(losses.sum(), list(leaves.values()))
    squares = [g.double().square().flatten(1).sum(1) for g in gradients]
    return {"loss": losses.detach().double(), "square": torch.stack(squares).sum(0)}


def _first_batch(task: Classify, ids: Tensor, when: When) -> tuple[Tensor, Tensor, Tensor]:
    """Prepared rows, labels and weights, each ``[K, B, ...]``; a client with fewer rows has weights of zero behind."""
    split, size = task.data.split(ids.numpy(), "train"), when.training.batch_size
    orders = random.permutations(random.keys(when.seed, ids.numpy(), when.round, 0), split.size, 1)[:, 0, :size]
    places = torch.arange(orders.shape[1])
    counts = torch.from_numpy(split.size).clamp(max=orders.shape[1])
    own = torch.from_numpy(orders.clip(max=(split.size - 1)[:, None]) + split.start[:, None])
    weight = (places < counts[:, None]) / counts[:, None]
    x = task.prepare(split.x[own.reshape(-1)].view(*own.shape, *split.x.shape[1:]))
    return x, split.y[own].to(task.device), weight.to(task.device, task.dtype)


def _zero(like: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.float64, device=like.device)
