"""Local SGD of K clients at once: one batched computation per step.

Clients are sorted by decreasing number of steps. The clients that still have steps to take are
then a prefix of the stack, which is a view and not a copy. Linear models under cross-entropy are
trained in closed form, by batched matrix products alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from equipoise.core import LinearLoss, LocalTrainRequest, Loss, Params, RngContext, State
from equipoise.core.messages import ROW_WEIGHTS, LinearGradients, LinearStack
from equipoise.data.federated_dataset import Ints, Split
from equipoise.training import batching
from equipoise.training.network import LinearParamNames, Network
from equipoise.utils import pytree
from equipoise.utils import rng as random

VECTOR_SIZE = 16
"""Pad to multiples of this many numbers: products and softmax are 25 % faster on whole vectors."""
PADDED_CLASS_BIAS = -1e9
"""Bias of padded classes: their softmax probability is exactly zero."""
GradientFn = Callable[[Params, State, Tensor, Tensor, Tensor | float], Params]
"""(parameters, aux, x, y, weights of the examples) to gradients, all `[A, ...]`."""


def fit(
    task: Network, ids: Tensor, request: LocalTrainRequest, rng: RngContext
) -> tuple[Params, Params]:
    """Train K clients as `sgd.fit` trains each of them.

    Args:
        task: Network and data.
        ids: Client numbers, `[K]`.
        request: Request of all clients, with leading axes `[K, ...]`.
        rng: Seed, round and training settings.

    Returns:
        Trained parameters and anchors (empty without a proximal term), `[K, ...]`.
    """
    clients = ids.numpy()
    split = task.data.split(clients, "train").fraction(*request.data_range)
    batches = _sorted_batches(task, clients, split, request, rng)
    sort = torch.from_numpy(batches.order).to(task.device)
    reorder = None if batches.is_sorted else sort
    frozen_stats = batching.frozen_batch_stats(task, request)
    request = batching.without_batch_stats(task, request)
    trainer: PaddedSgd | _GradientSgd
    if task.linear and has_closed_form(task.linear, request, rng, split.x, task.dtype):
        trainer = PaddedSgd(task.linear, request, rng, reorder)
        inputs = task.pad_inputs(split.x)
        prepare = None
    else:
        trainer = _GradientSgd(task, request, rng, sort, reorder)
        inputs = split.x
        prepare = task.prepare
    rows = batches.rows.to(inputs.device)

    for step, active in enumerate(batches.num_active):
        batch_rows = rows[step, :active]
        y = batches.labels[step, :active]
        x = inputs.index_select(0, batch_rows.reshape(-1))
        x = x.view(*batch_rows.shape, *inputs.shape[1:])
        if prepare is not None:
            x = prepare(x)
        weight: Tensor | float = 1.0 / rng.training.batch_size
        if batches.weights is not None:
            weight = batches.weights[step, :active]
        context: Params = {}
        for repetition in range(request.steps_per_batch):
            if batches.dropout_keys is not None:
                key = batches.dropout_keys[step * request.steps_per_batch + repetition, :active]
                context = task.step_context(key, batches.num_rows[step, :active])
            trainer.step(x, y, weight, context)
        if trainer.anchor_moves:
            trainer.move_anchor(active)

    params = trainer.trained_params()
    params |= {name: value[sort] for name, value in frozen_stats.items()}
    anchor = trainer.moved_anchor()
    # The proximal term does not apply to batch statistics: their anchor is their value.
    anchor |= {name: params[name] for name in task.info.batch_stat_names if name in anchor}
    if batches.is_sorted:
        return {name: value.contiguous() for name, value in params.items()}, anchor
    unsort = torch.from_numpy(np.argsort(batches.order)).to(task.device)
    params = {name: value[unsort].contiguous() for name, value in params.items()}
    return params, {name: value[unsort] for name, value in anchor.items()}


@dataclass(frozen=True)
class _SortedBatches:
    """Batches of K clients in S steps, sorted by decreasing number of steps."""

    order: Ints
    """Position in the request of each client in sorted order, `[K]`."""
    is_sorted: bool
    """Whether the order is that of the request, as it is if all clients have the same number of
    steps: no copies are needed."""
    num_active: list[int]
    """By step: the clients that take it, a prefix of the sorted ones."""
    rows: Tensor
    """Row numbers in the data, `[S, K, B]`."""
    labels: Tensor
    """Their targets, `[S, K, B, ...]`."""
    weights: Tensor | None
    """Weight of each example in its batch, `[S, K, B]`; None if all batches are full."""
    dropout_keys: Tensor | None
    """Random keys by step and client, `[S * steps_per_batch, K, ...]`; None if the network trains
    and evaluates alike."""
    num_rows: Tensor
    """Rows of each batch, at least 1, `[S, K]`; empty without `dropout_keys`."""


def _sorted_batches(
    task: Network, clients: Ints, split: Split, request: LocalTrainRequest, rng: RngContext
) -> _SortedBatches:
    """Plan the batches of all clients.

    Args:
        task: Network and data.
        clients: Client numbers, `[K]`.
        split: Their training rows.
        request: Request of all clients.
        rng: Seed, round and training settings.
    """
    batch_size = rng.training.batch_size
    key = random.keys(rng.seed, clients, rng.round, random.BATCHES[request.stream])
    plan = batching.plan_batches(key, split.size, request.epochs.numpy(), batch_size)
    order = np.argsort(-plan.steps, kind="stable")
    steps = plan.steps[order]
    is_sorted = bool((order[:-1] < order[1:]).all())
    row_numbers = plan.rows + split.start[:, None]
    rows = torch.from_numpy(row_numbers if is_sorted else row_numbers[:, order])
    labels = split.y.index_select(0, rows.reshape(-1)).view(*rows.shape, *split.y.shape[1:])
    labels = labels.to(task.device)
    counts = None if plan.counts is None else plan.counts[:, order]
    weights = None
    if counts is not None:
        weights = _example_weights(counts, batch_size, task)
        if task.pad_label is not None:
            is_real = (weights > 0).view(*rows.shape, *[1] * (labels.dim() - 3))
            labels = torch.where(is_real, labels, task.pad_label)
    # Clients with more than s steps take step s.
    num_active = np.searchsorted(-steps, -np.arange(int(steps[0]) if len(steps) else 0)).tolist()
    dropout_keys = None
    num_rows = torch.empty(0, dtype=torch.int64)
    if task.info.has_train_mode:
        dropout_key = random.keys(rng.seed, clients, rng.round, random.DROPOUT[request.stream])
        dropout_keys = batching.dropout_keys(dropout_key, plan, request.steps_per_batch)
        dropout_keys = dropout_keys[:, torch.from_numpy(order)]
        if counts is None:
            counts = np.full(rows.shape[:2], batch_size)
        num_rows = torch.from_numpy(np.maximum(counts, 1))
    return _SortedBatches(
        order, is_sorted, num_active, rows, labels, weights, dropout_keys, num_rows
    )


class _GradientSgd:
    """SGD of K models of any kind: gradients of a prefix of the stack, then the update."""

    def __init__(
        self,
        task: Network,
        request: LocalTrainRequest,
        rng: RngContext,
        sort: Tensor,
        reorder: Tensor | None,
    ) -> None:
        """Copy the models in sorted order.

        Args:
            task: Network and data.
            request: Request of all clients, `[K, ...]`.
            rng: Training settings.
            sort: The sorted order `[K]`.
            reorder: The same; None if it is the order of the request.
        """
        self._params = {
            name: _trainable_copy(value, reorder, name in task.transposed_params)
            for name, value in request.params.items()
        }
        self._aux = pytree.index(request.aux, sort)
        self._optimizer = _BatchedSgd(request, rng, sort)
        self.anchor_moves = self._optimizer.anchor_moves
        self._gradient_fn = _gradient_fn(task, request)
        self._active = len(sort)
        self._active_params = self._params
        self._active_aux = self._aux

    def step(self, x: Tensor, y: Tensor, weight: Tensor | float, context: Params) -> None:
        """Take one step with the first A models; A never grows.

        Args:
            x: Inputs, `[A, B, ...]`.
            y: Targets, `[A, B, ...]`.
            weight: Weight of each example, `[A, B]`, or one number for all.
            context: Further inputs of the network in this step.
        """
        active = len(x)
        if active < self._active:
            self._active = active
            self._active_params = {name: value[:active] for name, value in self._params.items()}
            self._active_aux = pytree.index(self._aux, slice(active))
        model = {**self._active_params, **context} if context else self._active_params
        gradients = self._gradient_fn(model, self._active_aux, x, y, weight)
        self._optimizer.step(model, gradients, active)

    def move_anchor(self, active: int) -> None:
        """Move the anchors of the first `active` models towards the models."""
        self._optimizer.move_anchor(self._params, active)

    def trained_params(self) -> Params:
        """Return the models, `[K, ...]`."""
        return self._params

    def moved_anchor(self) -> Params:
        """Return the anchors `[K, ...]`, empty without a proximal term."""
        return self._optimizer.anchor


class _BatchedSgd:
    """The update of `sgd.fit` on a prefix of the stack, in as few kernels as possible."""

    def __init__(self, request: LocalTrainRequest, rng: RngContext, sort: Tensor) -> None:
        """Copy rates, corrections and anchors in the order `sort` `[K]` of the models."""
        self.clamp = request.clamp
        self.names = request.trainable
        self.momentum = rng.training.momentum
        self.weight_decay = rng.training.weight_decay
        self.max_grad_norm = rng.training.max_grad_norm
        trainable = {name: request.params[name] for name in request.trainable}
        lr = request.lr[sort]
        self.minus_lr = {name: -_expand_like(lr, value) for name, value in trainable.items()}
        self.grad_correction: Params | None = None
        if request.grad_correction is not None:
            self.grad_correction = {name: request.grad_correction[name][sort] for name in trainable}
        self.velocity: Params = {}
        if self.momentum:
            self.velocity = {name: torch.zeros_like(value) for name, value in trainable.items()}
        self.anchor: Params = {}
        self.anchor_moves = False
        if request.proximal is not None:
            mu = torch.as_tensor(request.proximal.mu)
            anchor_lr = torch.as_tensor(request.proximal.anchor_lr)
            self.anchor_moves = bool((anchor_lr != 0).any())
            self.anchor = {name: value[sort] for name, value in request.proximal.anchor.items()}
            self.mu = {name: _per_client(mu, sort, value) for name, value in trainable.items()}
            self.anchor_lr = {
                name: _per_client(anchor_lr, sort, value) for name, value in trainable.items()
            }

    def step(self, params: Params, gradients: Params, active: int) -> None:
        """Update the parameters of the first `active` clients in place."""
        if self.max_grad_norm:
            gradients = _clip_norms(gradients, self.max_grad_norm)
        for name in self.names:
            p = params[name]
            g = gradients[name]
            if self.weight_decay:
                g = g.add(p, alpha=self.weight_decay)
            if self.grad_correction is not None:
                g = g + self.grad_correction[name][:active]
            if self.anchor:
                g = g.addcmul(p - self.anchor[name][:active], self.mu[name][:active])
            if self.momentum:
                g = self.velocity[name][:active].mul_(self.momentum).add_(g)
            p.addcmul_(g, self.minus_lr[name][:active])
            if self.clamp is not None:
                p.clamp_(*self.clamp)

    def move_anchor(self, params: Params, active: int) -> None:
        """Move the anchors of the first `active` clients towards their models, in place."""
        for name in self.names:
            anchor = self.anchor[name][:active]
            anchor.addcmul_(params[name][:active] - anchor, self.anchor_lr[name][:active])


def _gradient_fn(task: Network, request: LocalTrainRequest) -> GradientFn:
    """Return the closed form if there is one, otherwise one backward pass of all losses."""
    names = request.trainable
    if task.linear is not None and request.loss is None:
        return _closed_form(task.linear, _cross_entropy_gradients)
    if task.linear is not None and isinstance(request.loss, LinearLoss):
        return _closed_form(task.linear, request.loss.gradients)
    custom_loss: Loss | None = vmap(request.loss) if request.loss else None

    def backward(
        params: Params, aux: State, x: Tensor, y: Tensor, weight: Tensor | float
    ) -> Params:
        with torch.enable_grad():
            leaves = {name: params[name].detach().requires_grad_() for name in names}
            model = {**params, **leaves}
            if custom_loss:
                if ROW_WEIGHTS in aux:
                    aux = {**aux, ROW_WEIGHTS: _full_weights(weight, y, task.dtype)}
                losses = custom_loss(model, x, y, aux)
            else:
                losses = task.losses_stack(model, x, y)
            # The derivative of the weighted sum of the losses by each loss is its weight.
            grad_losses = weight if isinstance(weight, Tensor) else torch.full_like(losses, weight)
            gradients = torch.autograd.grad(losses, list(leaves.values()), grad_losses)
            return dict(zip(names, gradients, strict=True))

    return backward


def _closed_form(names: LinearParamNames, gradients: LinearGradients) -> GradientFn:
    """Return the gradients of linear models as a `GradientFn`."""
    models = LinearModels(names)

    def closed_form(
        params: Params, aux: State, x: Tensor, y: Tensor, weight: Tensor | float
    ) -> Params:
        weight = weight.unsqueeze(-1) if isinstance(weight, Tensor) else weight
        return gradients(models, params, x.flatten(2), y, aux, weight)

    return closed_form


def _cross_entropy_gradients(
    models: LinearStack, stack: Params, x: Tensor, y: Tensor, aux: State, weight: Tensor | float
) -> Params:
    """Return the gradients of the task's own loss; a `LinearGradients`."""
    return models.gradients(models.logits(stack, x), x, y, weight)


def _full_weights(weight: Tensor | float, y: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weights of the examples as a tensor `[A, B]`; `y` is `[A, B, ...]`."""
    if isinstance(weight, Tensor):
        return weight
    return torch.full(y.shape[:2], weight, dtype=dtype, device=y.device)


def _clip_norms(gradients: Params, max_norm: float) -> Params:
    """Scale each client's gradient `[A, ...]` down to at most this norm over all parameters."""
    squares = torch.stack([g.square().flatten(1).sum(1) for g in gradients.values()])
    factor = (max_norm / squares.sum(0).sqrt().clamp(min=batching.MIN_NORM)).clamp(max=1.0)
    return {name: g * _expand_like(factor, g) for name, g in gradients.items()}


def _example_weights(counts: Ints, batch_size: int, task: Network) -> Tensor:
    """Return weights `[S, K, B]`: 1 / batch count for real rows, 0 for padding."""
    is_real = np.arange(batch_size) < counts[..., None]
    weights = is_real / np.maximum(counts, 1)[..., None]
    return torch.from_numpy(weights).to(task.device, task.dtype)


def _trainable_copy(value: Tensor, order: Tensor | None, transposed: bool) -> Tensor:
    """Return a reordered copy to train in place, optionally transposed in memory."""
    ordered = value if order is None else value[order]
    if transposed:
        return ordered.mT.clone(memory_format=torch.contiguous_format).mT
    if order is None:
        return value.clone(memory_format=torch.contiguous_format)
    return ordered


def _per_client(value: Tensor, sort: Tensor, like: Tensor) -> Tensor:
    """Return one number per client (from `[K]` or a scalar), broadcastable against `like`."""
    per_client = value if value.dim() else value.expand(len(sort))
    return _expand_like(per_client[sort].to(like.dtype), like)


def _expand_like(value: Tensor, like: Tensor) -> Tensor:
    """Reshape `[K]` to `[K, 1, ..., 1]` with the number of axes of `like`."""
    return value.reshape(-1, *[1] * (like.dim() - 1))


# --- closed form of linear models --------------------------------------------------------------


def linear_param_names(module: nn.Module) -> LinearParamNames | None:
    """Return the parameter names if the closed form applies to a module.

    Args:
        module: Any network.

    Returns:
        Names of weight and bias if the module is one trainable `nn.Linear`, optionally after
        `nn.Flatten` or `nn.Identity` in a `nn.Sequential`; otherwise None.
    """
    layers = [(name, layer) for name, layer in module.named_modules() if not list(layer.children())]
    linear = [(name, layer) for name, layer in layers if isinstance(layer, nn.Linear)]
    others = [
        layer for _, layer in layers if not isinstance(layer, nn.Linear | nn.Flatten | nn.Identity)
    ]
    if type(module) not in (nn.Linear, nn.Sequential) or len(linear) != 1 or others:
        return None
    if not all(p.requires_grad for p in module.parameters()):
        return None
    name, layer = linear[0]
    prefix = f"{name}." if name else ""
    return f"{prefix}weight", f"{prefix}bias" if layer.bias is not None else None


def softmax_error(logits: Tensor, y: Tensor, minus_one: Tensor) -> Tensor:
    """Compute `softmax(logits) - onehot(y)`, the derivative of cross-entropy by the logits.

    Args:
        logits: Logits, `[..., C]`.
        y: Labels, `[...]`.
        minus_one: The number -1 with as many axes as the logits.

    Returns:
        Errors, `[..., C]`.
    """
    y = y.unsqueeze(-1)
    return torch.softmax(logits, -1).scatter_add_(-1, y, minus_one.expand(y.shape))


class LinearModels:
    """Logits and gradients of K linear models under cross-entropy; a `LinearStack`."""

    def __init__(self, names: LinearParamNames) -> None:
        """Keep the names of weight and bias."""
        self._weight, self._bias = names

    def logits(self, stack: Params, x: Tensor, prefix: str = "") -> Tensor:
        """Compute the logits `[K, B, C]` of inputs `[K, B, F]`.

        Args:
            stack: Parameters of K models.
            x: Inputs.
            prefix: What stands before the names of weight and bias.
        """
        weight = stack[prefix + self._weight].transpose(1, 2)
        if self._bias is None:
            return torch.bmm(x, weight)
        return torch.baddbmm(stack[prefix + self._bias].unsqueeze(1), x, weight)

    def gradients(
        self, logits: Tensor, x: Tensor, y: Tensor, weight: Tensor | float, prefix: str = ""
    ) -> Params:
        """Compute the gradients of K weighted cross-entropies.

        `grad W = E^T x`, `grad b = sum_i E_i`, where `E = weight * (softmax(logits) - onehot(y))`.

        Args:
            logits: Logits `[K, B, C]`.
            x: Inputs `[K, B, F]`.
            y: Classes `[K, B]`.
            weight: Weights of the rows `[K, B]`, or one number for all.
            prefix: What stands before the names of weight and bias.

        Returns:
            Gradients by name.
        """
        minus_one = logits.new_full((1, 1, 1), -1.0)
        error = softmax_error(logits, y, minus_one).mul_(weight)
        result = {prefix + self._weight: torch.bmm(error.transpose(1, 2), x)}
        if self._bias is not None:
            result[prefix + self._bias] = error.sum(1)
        return result


def pad_inputs(x: Tensor) -> Tensor:
    """Append a constant 1 for the bias, then zeros up to a multiple of `VECTOR_SIZE`.

    Args:
        x: Inputs, `[M, F]`.

    Returns:
        Padded inputs, `[M, F']`.
    """
    rows, features = x.shape
    padded = x.new_zeros(rows, _round_up(features + 1))
    padded[:, :features] = x
    padded[:, features] = 1.0
    return padded


def has_closed_form(
    names: LinearParamNames,
    request: LocalTrainRequest,
    rng: RngContext,
    rows: Tensor,
    dtype: torch.dtype,
) -> bool:
    """Say whether `PaddedSgd` can answer a request.

    It needs a linear model with a bias, rows that are plain vectors of the model's type, and SGD
    without momentum, clipping and bounds.

    Args:
        names: Names of weight and bias.
        request: Request of all clients.
        rng: Training settings.
        rows: Training rows of all clients, `[M, ...]`.
        dtype: Type of the model.

    Returns:
        True if all of the request is within the closed form.
    """
    if names[1] is None or set(request.trainable) != set(names):
        return False
    if rows.dim() != 2 or rows.dtype != dtype:
        return False
    training = rng.training
    is_plain_sgd = not training.momentum and not training.max_grad_norm
    return is_plain_sgd and request.loss is None and request.clamp is None


class PaddedSgd:
    """SGD of K linear models in padded tensors, with weight decay, correction and proximal term.

    With weight decay d, correction c and proximal term (anchor, mu), a step is

        W <- (1 - lr (d + mu)) W + lr (mu anchor - c) - lr grad(W)

    The second summand changes only when the anchor moves. The anchor of a padded class is the
    class's bias, so that the proximal term keeps it.
    """

    def __init__(
        self,
        names: LinearParamNames,
        request: LocalTrainRequest,
        rng: RngContext,
        order: Tensor | None,
    ) -> None:
        """Copy the models, the correction and the anchors into padded tensors.

        Args:
            names: Names of weight and bias.
            request: Request of all clients, `[K, ...]`.
            rng: Training settings.
            order: Order of the models `[K]`; None for that of the request.
        """
        self._models = PaddedLinear(names, request.params, order)
        dtype = self._models.weights.dtype
        lr = (request.lr if order is None else request.lr[order]).to(dtype)
        self._lr = _common_or_column(lr)
        self._decay = 1.0 - rng.training.weight_decay * self._lr
        self._correction: Tensor | None = None
        self._anchor: PaddedLinear | None = None
        self._anchor_lr: Tensor | float = 0.0
        self.anchor_moves = False
        if request.grad_correction is not None:
            correction = PaddedLinear(names, request.grad_correction, order, padded_class_bias=0.0)
            self._correction = correction.weights.mul_(self._lr).neg_()
        self._offset = self._correction
        if request.proximal is None:
            return
        sort = torch.arange(len(lr)) if order is None else order
        mu = _per_client(torch.as_tensor(request.proximal.mu), sort, lr)
        anchor_lr = _per_client(torch.as_tensor(request.proximal.anchor_lr), sort, lr)
        self._anchor = PaddedLinear(names, request.proximal.anchor, order)
        self._anchor_lr = _common_or_column(anchor_lr)
        self.anchor_moves = bool((anchor_lr != 0).any())
        self._pull = self._lr * _common_or_column(mu)
        self._decay = self._decay - self._pull
        self._offset = torch.empty_like(self._models.weights)
        self._set_offset(len(lr))

    def step(self, x: Tensor, y: Tensor, weight: Tensor | float, context: Params) -> None:
        """Take one step with the first A models; A never grows.

        Args:
            x: Padded inputs, `[A, B, F']`.
            y: Labels, `[A, B]`.
            weight: Weight of each example, `[A, B]`, or one number for all.
            context: Empty: a linear model has no further inputs.
        """
        active = len(x)
        lr = _first(self._lr, active)
        decay = _first(self._decay, active)
        rate = lr * (weight.unsqueeze(-1) if isinstance(weight, Tensor) else weight)
        offset = None if self._offset is None else self._offset[:active]
        self._models.step(x, y, rate, decay, offset)

    def move_anchor(self, active: int) -> None:
        """Move the anchors of the first `active` models towards the models."""
        assert self._anchor is not None
        weights = self._models.weights[:active]
        self._anchor.weights[:active].lerp_(weights, _first(self._anchor_lr, active))
        self._set_offset(active)

    def trained_params(self) -> Params:
        """Return weights `[K, C, F]` and biases `[K, C]` by name."""
        return self._models.params()

    def moved_anchor(self) -> Params:
        """Return the anchors `[K, ...]` by name, empty without a proximal term."""
        return {} if self._anchor is None else self._anchor.params()

    def _set_offset(self, active: int) -> None:
        """Compute `lr (mu anchor - c)` of the first `active` models."""
        assert self._anchor is not None
        assert self._offset is not None
        offset = self._offset[:active]
        offset.copy_(self._anchor.weights[:active]).mul_(_first(self._pull, active))
        if self._correction is not None:
            offset.add_(self._correction[:active])


class PaddedLinear:
    """K linear models in one tensor `[K, F', C']`, trained by SGD.

    The bias is the weight of an input that is always one. Padded inputs are zero and padded
    classes have probability zero, so neither ever changes the model. Gradient and step are one
    batched product, in place.
    """

    def __init__(
        self,
        names: LinearParamNames,
        stack: Params,
        order: Tensor | None = None,
        padded_class_bias: float = PADDED_CLASS_BIAS,
    ) -> None:
        """Copy the parameters into the padded tensor.

        Args:
            names: Names of weight and bias.
            stack: Weights `[K, C, F]` and biases `[K, C]`, by name.
            order: Order of the models `[K]`; None for that of the stack.
            padded_class_bias: Bias of padded classes.
        """
        weight = stack[names[0]]
        bias = stack[names[1] or ""]
        if order is not None:
            weight = weight[order]
            bias = bias[order]
        self.names = names
        clients, self.classes, self.features = weight.shape
        self.weights = weight.new_zeros(
            clients, _round_up(self.features + 1), _round_up(self.classes)
        )
        self.weights[:, : self.features, : self.classes] = weight.transpose(1, 2)
        self.weights[:, self.features, : self.classes] = bias
        self.weights[:, self.features, self.classes :] = padded_class_bias
        self._minus_one = weight.new_full((1, 1, 1), -1.0)

    def step(
        self,
        x: Tensor,
        y: Tensor,
        rate: Tensor | float,
        decay_factor: Tensor | float,
        offset: Tensor | None = None,
    ) -> None:
        """Update the first A models: `W <- decay_factor * W + offset - x^T (rate * error)`.

        Args:
            x: Padded inputs of the first A models, `[A, B, F']`.
            y: Labels, `[A, B]`.
            rate: Learning rate times the weight of each example, one number or broadcastable to
                the errors `[A, B, C']`.
            decay_factor: One number or `[A, 1, 1]`.
            offset: Added to the models, `[A, F', C']`; None for zero.
        """
        weights = self.weights[: len(x)]
        error = softmax_error(torch.bmm(x, weights), y, self._minus_one)
        scale = -1.0
        if isinstance(rate, Tensor):
            error.mul_(rate)
        else:
            scale = -rate
        if isinstance(decay_factor, Tensor) or decay_factor != 1.0:
            weights.mul_(decay_factor)
        if offset is not None:
            weights.add_(offset)
        weights.baddbmm_(x.transpose(1, 2), error, alpha=scale)

    def params(self) -> Params:
        """Return weights `[K, C, F]` and biases `[K, C]` without padding, as copies."""
        weight = self.weights[:, : self.features, : self.classes].transpose(1, 2).contiguous()
        bias = self.weights[:, self.features, : self.classes].clone()
        return {self.names[0]: weight, self.names[1] or "": bias}


def _round_up(count: int) -> int:
    """Round up to a multiple of `VECTOR_SIZE`."""
    return -(-count // VECTOR_SIZE) * VECTOR_SIZE


def _common_or_column(per_client: Tensor) -> Tensor | float:
    """Return the number that all clients share, or `[K]` as a column `[K, 1, 1]`."""
    if bool((per_client == per_client[0]).all()):
        return float(per_client[0])
    return per_client[:, None, None]


def _first(value: Tensor | float, active: int) -> Tensor | float:
    """Return the part of the first `active` clients."""
    return value[:active] if isinstance(value, Tensor) else value
