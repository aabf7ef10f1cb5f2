"""Local SGD of one client, written to be obvious: the oracle of the stacked engine."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from equipoise.contract import Fit, Tree, When
from equipoise.core import random, streams, trees
from equipoise.learners import batches
from equipoise.learners.network import Network
from equipoise.learners.portions import portion


def fit(task: Network, client: Tensor, fit: Fit, when: When) -> tuple[Tree, Tree]:
    """v <- momentum v + (gradient + decay p + linear + strength (p - anchor)); p <- p - lr v, for every step."""
    ids = client.reshape(1).numpy()
    split = task.data.split(ids, "train").part(*fit.part)
    key = random.keys(when.seed, ids, when.round, streams.BATCHES[fit.stream])
    plan = batches.plan(key, split.size, fit.epochs.reshape(1).numpy(), when.training.batch_size)
    losses, training = fit.loss or task.losses, when.training
    words = batches.words(random.keys(when.seed, ids, when.round, streams.DROPOUT[fit.stream]), plan, fit.repeat)
    held, fit = fit, replace(fit, names=tuple(name for name in fit.names if name not in task.statistics))
    params = {name: task.laid_out(value) for name, value in fit.params.items()}
    params |= {name: params[name].clone() for name in task.statistics}  # training steps write into them
    anchor = dict(fit.pull.anchor) if fit.pull else {}
    velocity = {name: torch.zeros_like(params[name]) for name in fit.names}
    for step in range(int(plan.steps[0])):
        count = when.training.batch_size if plan.counts is None else int(plan.counts[step, 0])
        rows = torch.from_numpy(split.start[0] + plan.rows[step, 0, :count])
        x, y = task.prepare(split.x[rows]), split.y[rows].to(task.device)
        for again in range(fit.repeat):
            context = task.step(words[step * fit.repeat + again, 0], torch.tensor(count)) if task.stepped else {}
            with torch.enable_grad():
                leaves = {name: params[name].detach().requires_grad_() for name in fit.names}
                loss = losses({**params, **leaves, **context}, x, y, fit.aux).mean()
                gradients = torch.autograd.grad(loss, list(leaves.values()))
            for name, gradient in zip(fit.names, gradients, strict=True):
                p, g = params[name], gradient
                if training.weight_decay:
                    g = g.add(p, alpha=training.weight_decay)
                if fit.linear is not None:
                    g = g + fit.linear[name]
                if fit.pull is not None:
                    g = g + fit.pull.strength * (p - anchor[name])
                if training.momentum:
                    g = velocity[name] = training.momentum * velocity[name] + g
                params[name] = torch.addcmul(p, g, -fit.lr)
                if fit.clamp is not None:
                    params[name] = params[name].clamp(*fit.clamp)
        if fit.pull is not None:
            for name in fit.names:
                anchor[name] = anchor[name] + fit.pull.follow * (params[name] - anchor[name])
    kept = {name: held.params[name] for name in task.statistics if name not in held.names}
    anchor |= {name: params[name] for name in task.statistics if name in anchor}  # nothing pulls them
    return {name: value.contiguous() for name, value in (params | kept).items()}, anchor


def fit_each(task: Network, ids: Tensor, fit_all: Fit, when: When) -> tuple[Tree, Tree]:
    """A stack of clients, one after another: for models that no batched computation serves."""
    out = [fit(task, ids[k], portion(fit_all, k, len(ids)), when) for k in range(len(ids))]
    params, anchor = (trees.stack([pair[i] for pair in out]) for i in (0, 1))
    return params, anchor
