"""Local SGD of K clients at once: one batched computation a step, on the clients that still have steps to take.

Clients are sorted by their number of steps, so the active ones are a prefix of the stack: a view, no copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from equipoise.core import LocalTrainRequest, Loss, Params, RngContext, State
from equipoise.data.federated_dataset import Ints
from equipoise.training import batching, linear_closed_form
from equipoise.training.network import Network
from equipoise.utils import rng as random
from equipoise.utils import rng as streams

Advance = Callable[[Params, State, Tensor, Tensor, Tensor | float], None]
"""(stacked parameters, aux, x, y, weights of the samples): one step, in place."""
Gradient = Callable[[Params, State, Tensor, Tensor, Tensor | float], Params]
"""The same arguments to the gradients of the parameters that move."""


def fit(
    task: Network, ids: Tensor, request: LocalTrainRequest, rng: RngContext
) -> tuple[Params, Params]:
    """As :func:`equipoise.training.sgd.fit`, for every client of the stack."""
    clients, training = ids.numpy(), rng.training
    split = task.data.split(clients, "train").fraction(*request.data_range)
    key = random.keys(rng.seed, clients, rng.round, streams.BATCHES[request.stream])
    plan = batching.plan(key, split.size, request.epochs.numpy(), training.batch_size)

    order = np.argsort(-plan.steps, kind="stable")
    steps = plan.steps[order]
    numbers = plan.rows + split.start[:, None]
    in_order = bool(
        (order[:-1] < order[1:]).all()
    )  # as when all have the same number of steps: nothing to move
    rows = torch.from_numpy(numbers if in_order else numbers[:, order])
    labels = (
        split.y.index_select(0, rows.reshape(-1))
        .view(*rows.shape, *split.y.shape[1:])
        .to(task.device)
    )
    weights = (
        None
        if plan.counts is None
        else _sample_weights(plan.counts[:, order], training.batch_size, task)
    )
    if weights is not None and task.filler is not None:
        labels = torch.where(
            (weights > 0).view(*rows.shape, *[1] * (labels.dim() - 3)), labels, task.filler
        )
    sort = torch.from_numpy(order).to(task.device)
    if task.has_train_mode:
        drops = random.keys(rng.seed, clients, rng.round, streams.DROPOUT[request.stream])
        words = batching.words(drops, plan, request.steps_per_batch)[:, torch.from_numpy(order)]
        counts = (
            np.full(rows.shape[:2], training.batch_size)
            if plan.counts is None
            else plan.counts[:, order]
        )
        true_rows = torch.from_numpy(np.maximum(counts, 1))
    held, request = (
        request,
        replace(
            request,
            trainable=tuple(
                name for name in request.trainable if name not in task.batch_stat_names
            ),
        ),
    )
    params = {
        name: _own(value, None if in_order else sort, name in task.wide)
        for name, value in request.params.items()
    }
    aux = _rows(request.aux, sort)
    rule = _Rule(request, rng, sort)
    laned = _laned(task, request, rng, params, split.x)
    advance = _by_product(laned, request, rng, sort) if laned else _by_gradient(task, request, rule)
    inputs = task.with_lanes(split.x) if laned else split.x
    rows = rows.to(inputs.device)

    still = np.searchsorted(-steps, -np.arange(int(steps[0]) if len(steps) else 0)).tolist()
    now, now_aux = params, aux
    for step, active in enumerate(still):
        here, y = rows[step, :active], labels[step, :active]
        x = inputs.index_select(0, here.reshape(-1)).view(*here.shape, *inputs.shape[1:])
        x = x if laned else task.prepare(x)
        weight = 1.0 / training.batch_size if weights is None else weights[step, :active]
        if active < len(next(iter(now.values()))):
            now, now_aux = (
                {name: value[:active] for name, value in params.items()},
                _rows(aux, slice(active)),
            )
        for again in range(request.steps_per_batch):
            if task.has_train_mode:
                context = task.step(
                    words[step * request.steps_per_batch + again, :active], true_rows[step, :active]
                )
                advance({**now, **context}, now_aux, x, y, weight)
            else:
                advance(now, now_aux, x, y, weight)
        rule.follow(now, active)

    params = laned.params() if laned else params
    params |= {
        name: held.params[name][sort]
        for name in task.batch_stat_names
        if name not in held.trainable
    }
    rule.anchor |= {
        name: params[name] for name in task.batch_stat_names if name in rule.anchor
    }  # nothing pulls them
    if in_order:
        return {name: value.contiguous() for name, value in params.items()}, rule.anchor
    unsort = torch.from_numpy(np.argsort(order)).to(task.device)
    return {name: value[unsort].contiguous() for name, value in params.items()}, {
        name: value[unsort] for name, value in rule.anchor.items()
    }


class _Rule:
    """The SGD rule on a prefix of the stack, with its corrections folded into as few kernels as it takes."""

    def __init__(self, request: LocalTrainRequest, rng: RngContext, sort: Tensor) -> None:
        self.clamp, self.names = request.clamp, request.trainable
        self.momentum, self.decay = rng.training.momentum, rng.training.weight_decay
        like = {name: request.params[name] for name in request.trainable}
        self.minus_lr = {name: -_wide(request.lr[sort], value) for name, value in like.items()}
        self.linear = (
            None
            if request.grad_correction is None
            else {name: request.grad_correction[name][sort] for name in request.trainable}
        )
        self.velocity: Params = {}
        if self.momentum:
            self.velocity = {name: torch.zeros_like(value) for name, value in like.items()}
        self.anchor: Params = {}
        self.follows = False
        if request.proximal is not None:
            strength, follow = (
                torch.as_tensor(request.proximal.mu),
                torch.as_tensor(request.proximal.anchor_lr),
            )
            self.follows = bool((follow != 0).any())
            self.anchor = {name: value[sort] for name, value in request.proximal.anchor.items()}
            self.strength = {name: _each(strength, sort, value) for name, value in like.items()}
            self.rate = {name: _each(follow, sort, value) for name, value in like.items()}

    def step(self, params: Params, gradients: Params, active: int) -> None:
        for name in self.names:
            p, g = params[name], gradients[name]
            if self.decay:
                g = g.add(p, alpha=self.decay)
            if self.linear is not None:
                g = g + self.linear[name][:active]
            if self.anchor:
                g = g.addcmul(p - self.anchor[name][:active], self.strength[name][:active])
            if self.momentum:
                g = self.velocity[name][:active].mul_(self.momentum).add_(g)
            p.addcmul_(g, self.minus_lr[name][:active])
            if self.clamp is not None:
                p.clamp_(*self.clamp)

    def follow(self, params: Params, active: int) -> None:
        if self.follows:
            for name in self.names:
                anchor = self.anchor[name][:active]
                anchor.addcmul_(params[name] - anchor, self.rate[name][:active])


def _laned(
    task: Network, request: LocalTrainRequest, rng: RngContext, params: Params, rows: Tensor
) -> linear_closed_form.Laned | None:
    """A linear model with a bias, on plain numbers, under SGD with nothing but weight decay; else ``None``."""
    names = task.linear
    if (
        names is None
        or names[1] is None
        or set(request.trainable) != set(names)
        or rows.dim() != 2
        or rows.dtype != task.dtype
    ):
        return None
    corrected = (
        request.loss
        or request.proximal
        or request.grad_correction
        or request.clamp
        or rng.training.momentum
    )
    return None if corrected else linear_closed_form.Laned(names, params)


def _by_product(
    laned: linear_closed_form.Laned, request: LocalTrainRequest, rng: RngContext, sort: Tensor
) -> Advance:
    lr, decay = request.lr[sort].to(laned.table.dtype), rng.training.weight_decay
    one_rate = float(lr[0]) if bool((lr == lr[0]).all()) else None

    def advance(params: Params, aux: State, x: Tensor, y: Tensor, weight: Tensor | float) -> None:
        each = lr[: len(x), None, None] if one_rate is None else one_rate
        rate = each * (weight.unsqueeze(-1) if isinstance(weight, Tensor) else weight)
        laned.step(x, y, rate, 1.0 - decay * each)

    return advance


def _by_gradient(task: Network, request: LocalTrainRequest, rule: _Rule) -> Advance:
    gradient = _gradient(task, request)

    def advance(params: Params, aux: State, x: Tensor, y: Tensor, weight: Tensor | float) -> None:
        rule.step(params, gradient(params, aux, x, y, weight), len(x))

    return advance


def _gradient(task: Network, request: LocalTrainRequest) -> Gradient:
    """The closed form where there is one; else one backward pass through the mapped losses."""
    names = request.trainable
    if request.loss is None and task.linear is not None:
        linear = task.linear

        def closed(
            params: Params, aux: State, x: Tensor, y: Tensor, weight: Tensor | float
        ) -> Params:
            wide = weight.unsqueeze(-1) if isinstance(weight, Tensor) else weight
            return linear_closed_form.gradients(linear, task.forward_stack(params, x), x, y, wide)

        return closed
    own: Loss | None = vmap(request.loss) if request.loss else None

    def backward(
        params: Params, aux: State, x: Tensor, y: Tensor, weight: Tensor | float
    ) -> Params:
        with torch.enable_grad():
            leaves = {name: params[name].detach().requires_grad_() for name in names}
            now = {**params, **leaves}
            losses = own(now, x, y, aux) if own else task.losses_stack(now, x, y)
            # The derivative of the weighted sum of the losses by each of them.
            by_loss = weight if isinstance(weight, Tensor) else torch.full_like(losses, weight)
            return dict(
                zip(names, torch.autograd.grad(losses, list(leaves.values()), by_loss), strict=True)
            )

    return backward


def _sample_weights(counts: Ints, batch_size: int, task: Network) -> Tensor:
    """``[S, K, B]``: one over the batch's true size for its samples, zero for the padding."""
    safe = np.maximum(counts, 1)[..., None]
    return torch.from_numpy((np.arange(batch_size) < counts[..., None]) / safe).to(
        task.device, task.dtype
    )


def _own(value: Tensor, order: Tensor | None, wide: bool) -> Tensor:
    """A copy to train in place, in this order; if ``wide``, its matrices lie transposed in memory."""
    found = value if order is None else value[order]
    if wide:
        return _copy(found.mT).mT
    return _copy(value) if order is None else found


def _copy(value: Tensor) -> Tensor:
    return value.clone(memory_format=torch.contiguous_format)


def _each(value: Tensor, sort: Tensor, like: Tensor) -> Tensor:
    """One number per client (or one for all) as a stack that broadcasts against ``like``."""
    return _wide((value if value.dim() else value.expand(len(sort)))[sort].to(like.dtype), like)


def _wide(value: Tensor, like: Tensor) -> Tensor:
    return value.reshape(-1, *[1] * (like.dim() - 1))


def _rows(tree: State, which: Tensor | slice) -> State:
    return {key: _rows(v, which) if isinstance(v, dict) else v[which] for key, v in tree.items()}
