"""Local SGD of one client: the reference for `batched_sgd`, and the engine of the loop executor."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.core import LocalTrainRequest, Params, RngContext, TrainingConfig
from equipoise.core.messages import ROW_WEIGHTS
from equipoise.training import batching
from equipoise.training.network import Network
from equipoise.utils import pytree
from equipoise.utils import rng as random


def fit(
    task: Network, client: Tensor, request: LocalTrainRequest, rng: RngContext
) -> tuple[Params, Params]:
    """Train one client by SGD.

    Every step computes, with weight decay `w`, correction `c` and proximal term `(anchor, mu)`:

        g = clip(grad loss(p)) + w p + c + mu (p - anchor)
        v = momentum v + g
        p = clamp(p - lr v)

    After each batch the anchor moves: `anchor = anchor + anchor_lr (p - anchor)`.

    Args:
        task: Network and data.
        client: Client number, a scalar tensor.
        request: Start model, epochs, learning rate and corrections of the client.
        rng: Seed, round and training settings.

    Returns:
        The trained parameters, and the anchor (empty without a proximal term).
    """
    ids = client.reshape(1).numpy()
    training = rng.training
    split = task.data.split(ids, "train").fraction(*request.data_range)
    batch_key = random.keys(rng.seed, ids, rng.round, random.BATCHES[request.stream])
    plan = batching.plan_batches(
        batch_key, split.size, request.epochs.reshape(1).numpy(), training.batch_size
    )
    dropout_key = random.keys(rng.seed, ids, rng.round, random.DROPOUT[request.stream])
    dropout_keys = batching.dropout_keys(dropout_key, plan, request.steps_per_batch)
    # Batch statistics have no gradients; training steps write into their copies below.
    frozen_stats = batching.frozen_batch_stats(task, request)
    request = batching.without_batch_stats(task, request)
    losses = request.loss or task.losses
    params = {name: task.channels_last(value) for name, value in request.params.items()}
    params |= {name: params[name].clone() for name in task.info.batch_stat_names}
    anchor = dict(request.proximal.anchor) if request.proximal else {}
    velocity = {name: torch.zeros_like(params[name]) for name in request.trainable}
    for step in range(int(plan.steps[0])):
        count = training.batch_size if plan.counts is None else int(plan.counts[step, 0])
        rows = torch.from_numpy(split.start[0] + plan.rows[step, 0, :count])
        x = task.prepare(split.x[rows])
        y = split.y[rows].to(task.device)
        aux = request.aux
        if ROW_WEIGHTS in aux:
            aux = {**aux, ROW_WEIGHTS: x.new_full((count,), 1.0 / count, dtype=task.dtype)}
        for repetition in range(request.steps_per_batch):
            context: Params = {}
            if task.info.has_train_mode:
                key = dropout_keys[step * request.steps_per_batch + repetition, 0]
                context = task.step_context(key, torch.tensor(count))
            with torch.enable_grad():
                leaves = {
                    name: params[name].detach().requires_grad_() for name in request.trainable
                }
                loss = losses({**params, **leaves, **context}, x, y, aux).mean()
                gradients = torch.autograd.grad(loss, list(leaves.values()))
            _step(params, anchor, velocity, gradients, request, training)
        if request.proximal is not None:
            anchor_lr = request.proximal.anchor_lr
            for name in request.trainable:
                anchor[name] = anchor[name] + anchor_lr * (params[name] - anchor[name])
    params |= frozen_stats
    # The proximal term does not apply to batch statistics: their anchor is their value.
    anchor |= {name: params[name] for name in task.info.batch_stat_names if name in anchor}
    return {name: value.contiguous() for name, value in params.items()}, anchor


def _clip(gradients: tuple[Tensor, ...], max_norm: float) -> tuple[Tensor, ...]:
    """Scale gradients so that the norm of all of them together is at most `max_norm`."""
    norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    factor = (max_norm / norm.clamp(min=batching.MIN_NORM)).clamp(max=1.0)
    return tuple(factor * g for g in gradients)


def _step(
    params: Params,
    anchor: Params,
    velocity: Params,
    gradients: tuple[Tensor, ...],
    request: LocalTrainRequest,
    training: TrainingConfig,
) -> None:
    """Apply the equations of `fit` to the gradients; change params and velocity."""
    if training.max_grad_norm:
        gradients = _clip(gradients, training.max_grad_norm)
    for name, g in zip(request.trainable, gradients, strict=True):
        p = params[name]
        if training.weight_decay:
            g = g.add(p, alpha=training.weight_decay)
        if request.grad_correction is not None:
            g = g + request.grad_correction[name]
        if request.proximal is not None:
            g = g + request.proximal.mu * (p - anchor[name])
        if training.momentum:
            g = training.momentum * velocity[name] + g
            velocity[name] = g
        params[name] = torch.addcmul(p, g, -request.lr)
        if request.clamp is not None:
            params[name] = params[name].clamp(*request.clamp)


def fit_each(
    task: Network, ids: Tensor, request: LocalTrainRequest, rng: RngContext
) -> tuple[Params, Params]:
    """Train K clients one after another, for networks that cannot be batched.

    Args:
        task: Network and data.
        ids: Client numbers, `[K]`.
        request: Request of all clients, `[K, ...]`.
        rng: Seed, round and training settings.

    Returns:
        Trained parameters and anchors, `[K, ...]`.
    """
    results = [
        fit(task, ids[k], batching.slice_request(request, k, len(ids)), rng)
        for k in range(len(ids))
    ]
    params = pytree.stack([params for params, _ in results])
    anchor = pytree.stack([anchor for _, anchor in results])
    return params, anchor
