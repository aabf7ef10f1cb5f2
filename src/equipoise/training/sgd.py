"""What the engines of local SGD ask of whoever brings a network and rows."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from equipoise.core import LocalTrainRequest, Params, RngContext
from equipoise.training import batching
from equipoise.training.chunking import portion
from equipoise.training.network import Network
from equipoise.utils import pytree
from equipoise.utils import rng as random
from equipoise.utils import rng as streams


def fit(
    task: Network, client: Tensor, request: LocalTrainRequest, rng: RngContext
) -> tuple[Params, Params]:
    """v <- momentum v + (gradient + decay p + linear + strength (p - anchor)); p <- p - lr v, for every step."""
    ids = client.reshape(1).numpy()
    split = task.data.split(ids, "train").fraction(*request.data_range)
    key = random.keys(rng.seed, ids, rng.round, streams.BATCHES[request.stream])
    plan = batching.plan(
        key, split.size, request.epochs.reshape(1).numpy(), rng.training.batch_size
    )
    losses, training = request.loss or task.losses, rng.training
    words = batching.words(
        random.keys(rng.seed, ids, rng.round, streams.DROPOUT[request.stream]),
        plan,
        request.steps_per_batch,
    )
    held, request = (
        request,
        replace(
            request,
            trainable=tuple(
                name for name in request.trainable if name not in task.batch_stat_names
            ),
        ),
    )
    params = {name: task.laid_out(value) for name, value in request.params.items()}
    params |= {
        name: params[name].clone() for name in task.batch_stat_names
    }  # training steps write into them
    anchor = dict(request.proximal.anchor) if request.proximal else {}
    velocity = {name: torch.zeros_like(params[name]) for name in request.trainable}
    for step in range(int(plan.steps[0])):
        count = rng.training.batch_size if plan.counts is None else int(plan.counts[step, 0])
        rows = torch.from_numpy(split.start[0] + plan.rows[step, 0, :count])
        x, y = task.prepare(split.x[rows]), split.y[rows].to(task.device)
        for again in range(request.steps_per_batch):
            context = (
                task.step(words[step * request.steps_per_batch + again, 0], torch.tensor(count))
                if task.has_train_mode
                else {}
            )
            with torch.enable_grad():
                leaves = {
                    name: params[name].detach().requires_grad_() for name in request.trainable
                }
                loss = losses({**params, **leaves, **context}, x, y, request.aux).mean()
                gradients = torch.autograd.grad(loss, list(leaves.values()))
            for name, gradient in zip(request.trainable, gradients, strict=True):
                p, g = params[name], gradient
                if training.weight_decay:
                    g = g.add(p, alpha=training.weight_decay)
                if request.grad_correction is not None:
                    g = g + request.grad_correction[name]
                if request.proximal is not None:
                    g = g + request.proximal.mu * (p - anchor[name])
                if training.momentum:
                    g = velocity[name] = training.momentum * velocity[name] + g
                params[name] = torch.addcmul(p, g, -request.lr)
                if request.clamp is not None:
                    params[name] = params[name].clamp(*request.clamp)
        if request.proximal is not None:
            for name in request.trainable:
                anchor[name] = anchor[name] + request.proximal.anchor_lr * (
                    params[name] - anchor[name]
                )
    kept = {name: held.params[name] for name in task.batch_stat_names if name not in held.trainable}
    anchor |= {
        name: params[name] for name in task.batch_stat_names if name in anchor
    }  # nothing pulls them
    return {name: value.contiguous() for name, value in (params | kept).items()}, anchor


def fit_each(
    task: Network, ids: Tensor, fit_all: LocalTrainRequest, rng: RngContext
) -> tuple[Params, Params]:
    """A stack of clients, one after another: for models that no batched computation serves."""
    out = [fit(task, ids[k], portion(fit_all, k, len(ids)), rng) for k in range(len(ids))]
    params, anchor = (pytree.stack([pair[i] for pair in out]) for i in (0, 1))
    return params, anchor
