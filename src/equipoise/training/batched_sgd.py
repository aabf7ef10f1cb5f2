"""Local SGD of K clients at once: one batched computation per step.

Clients are sorted by decreasing number of steps. The clients that still have steps to take are
then a prefix of the stack, which is a view and not a copy. Linear models under cross-entropy are
trained in closed form, by batched matrix products alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from equipoise.core import LocalTrainRequest, Loss, Params, RngContext, State
from equipoise.core.messages import ROW_WEIGHTS
from equipoise.data.federated_dataset import Ints
from equipoise.training import batching
from equipoise.training.network import LinearParamNames, Network
from equipoise.utils import rng as random

VECTOR_SIZE = 16
"""Pad to multiples of this many numbers: products and softmax are 25 % faster on whole vectors."""
PADDED_CLASS_BIAS = -1e9
"""Bias of padded classes: their softmax probability is exactly zero."""
StepFn = Callable[[Params, State, Tensor, Tensor, Tensor | float], None]
"""(parameters, aux, x, y, weights of the examples), all `[A, ...]`: one SGD step, in place."""
GradientFn = Callable[[Params, State, Tensor, Tensor, Tensor | float], Params]
"""The same arguments to the gradients of the trainable parameters, `[A, ...]`."""


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
    training = rng.training
    split = task.data.split(clients, "train").fraction(*request.data_range)
    key = random.keys(rng.seed, clients, rng.round, random.BATCHES[request.stream])
    plan = batching.plan_batches(key, split.size, request.epochs.numpy(), training.batch_size)

    # Sort clients by decreasing number of steps.
    order = np.argsort(-plan.steps, kind="stable")
    steps = plan.steps[order]
    # True if, for example, all clients have the same number of steps: no copies are needed.
    is_sorted = bool((order[:-1] < order[1:]).all())
    row_numbers = plan.rows + split.start[:, None]
    rows = torch.from_numpy(row_numbers if is_sorted else row_numbers[:, order])  # [S, K, B]
    labels = split.y.index_select(0, rows.reshape(-1)).view(*rows.shape, *split.y.shape[1:])
    labels = labels.to(task.device)
    counts = None if plan.counts is None else plan.counts[:, order]
    weights = None
    if counts is not None:
        weights = _example_weights(counts, training.batch_size, task)
        if task.pad_label is not None:
            is_real = (weights > 0).view(*rows.shape, *[1] * (labels.dim() - 3))
            labels = torch.where(is_real, labels, task.pad_label)
    sort = torch.from_numpy(order).to(task.device)
    if task.info.has_train_mode:
        dropout_key = random.keys(rng.seed, clients, rng.round, random.DROPOUT[request.stream])
        dropout_keys = batching.dropout_keys(dropout_key, plan, request.steps_per_batch)
        dropout_keys = dropout_keys[:, torch.from_numpy(order)]
        if counts is None:
            counts = np.full(rows.shape[:2], training.batch_size)
        num_rows = torch.from_numpy(np.maximum(counts, 1))

    frozen_stats = {
        name: request.params[name]
        for name in task.info.batch_stat_names
        if name not in request.trainable
    }
    request = batching.without_batch_stats(task, request)
    reorder = None if is_sorted else sort
    aux = _index(request.aux, sort)
    optimizer = _BatchedSgd(request, rng, sort)
    padded = _padded_linear(task, request, rng, reorder, split.x)
    if padded:
        params: Params = {}  # the padded copy is the only one
        step_fn = _closed_form_step(padded, request, rng, sort)
        inputs = task.pad_inputs(split.x)
    else:
        params = {
            name: _trainable_copy(value, reorder, name in task.transposed_params)
            for name, value in request.params.items()
        }
        step_fn = _gradient_step(task, request, optimizer)
        inputs = split.x
    rows = rows.to(inputs.device)

    # num_active[s]: clients with more than s steps.
    num_active = np.searchsorted(-steps, -np.arange(int(steps[0]) if len(steps) else 0)).tolist()
    active_params = params
    active_aux = aux
    previous = len(clients)
    for step, active in enumerate(num_active):
        batch_rows = rows[step, :active]
        y = labels[step, :active]
        x = inputs.index_select(0, batch_rows.reshape(-1))
        x = x.view(*batch_rows.shape, *inputs.shape[1:])
        if not padded:
            x = task.prepare(x)
        weight = 1.0 / training.batch_size if weights is None else weights[step, :active]
        if active < previous:
            previous = active
            active_params = {name: value[:active] for name, value in params.items()}
            active_aux = _index(aux, slice(active))
        for repetition in range(request.steps_per_batch):
            if task.info.has_train_mode:
                step_key = dropout_keys[step * request.steps_per_batch + repetition, :active]
                context = task.step_context(step_key, num_rows[step, :active])
                step_fn({**active_params, **context}, active_aux, x, y, weight)
            else:
                step_fn(active_params, active_aux, x, y, weight)
        optimizer.move_anchor(active_params, active)

    if padded:
        params = padded.params()
    params |= {name: value[sort] for name, value in frozen_stats.items()}
    anchor = optimizer.anchor
    # The proximal term does not apply to batch statistics: their anchor is their value.
    anchor |= {name: params[name] for name in task.info.batch_stat_names if name in anchor}
    if is_sorted:
        return {name: value.contiguous() for name, value in params.items()}, anchor
    unsort = torch.from_numpy(np.argsort(order)).to(task.device)
    params = {name: value[unsort].contiguous() for name, value in params.items()}
    return params, {name: value[unsort] for name, value in anchor.items()}


class _BatchedSgd:
    """The update of `sgd.fit` on a prefix of the stack, in as few kernels as possible."""

    def __init__(self, request: LocalTrainRequest, rng: RngContext, sort: Tensor) -> None:
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
        if not self.anchor_moves:
            return
        for name in self.names:
            anchor = self.anchor[name][:active]
            anchor.addcmul_(params[name] - anchor, self.anchor_lr[name][:active])


def _padded_linear(
    task: Network, request: LocalTrainRequest, rng: RngContext, order: Tensor | None, rows: Tensor
) -> PaddedLinear | None:
    """Return the padded model if the fused closed form applies, otherwise None.

    It needs a linear model with a bias, rows that are plain vectors of the model's type, and SGD
    without clipping or any correction except weight decay.
    """
    names = task.linear
    if names is None or names[1] is None or set(request.trainable) != set(names):
        return None
    if rows.dim() != 2 or rows.dtype != task.dtype:
        return None
    has_correction = (
        request.loss
        or request.proximal
        or request.grad_correction
        or request.clamp
        or rng.training.momentum
        or rng.training.max_grad_norm
    )
    return None if has_correction else PaddedLinear(names, request.params, order)


def _closed_form_step(
    padded: PaddedLinear,
    request: LocalTrainRequest,
    rng: RngContext,
    sort: Tensor,
) -> StepFn:
    """Return the step that updates the padded model by one product."""
    lr = request.lr[sort].to(padded.weights.dtype)
    weight_decay = rng.training.weight_decay
    common_lr = float(lr[0]) if bool((lr == lr[0]).all()) else None

    def step(params: Params, aux: State, x: Tensor, y: Tensor, weight: Tensor | float) -> None:
        client_lr = lr[: len(x), None, None] if common_lr is None else common_lr
        rate = client_lr * (weight.unsqueeze(-1) if isinstance(weight, Tensor) else weight)
        padded.step(x, y, rate, 1.0 - weight_decay * client_lr)

    return step


def _gradient_step(task: Network, request: LocalTrainRequest, optimizer: _BatchedSgd) -> StepFn:
    """Return the step that computes gradients and applies the optimizer."""
    gradient_fn = _gradient_fn(task, request)

    def step(params: Params, aux: State, x: Tensor, y: Tensor, weight: Tensor | float) -> None:
        optimizer.step(params, gradient_fn(params, aux, x, y, weight), len(x))

    return step


def _gradient_fn(task: Network, request: LocalTrainRequest) -> GradientFn:
    """Return the closed form if there is one, otherwise one backward pass of all losses."""
    names = request.trainable
    if request.loss is None and task.linear is not None:
        linear = task.linear

        def closed_form(
            params: Params, aux: State, x: Tensor, y: Tensor, weight: Tensor | float
        ) -> Params:
            weight = weight.unsqueeze(-1) if isinstance(weight, Tensor) else weight
            logits = task.forward_stack(params, x)
            return linear_gradients(linear, logits, x, y, weight)

        return closed_form
    custom_loss: Loss | None = vmap(request.loss) if request.loss else None

    def backward(
        params: Params, aux: State, x: Tensor, y: Tensor, weight: Tensor | float
    ) -> Params:
        with torch.enable_grad():
            leaves = {name: params[name].detach().requires_grad_() for name in names}
            model = {**params, **leaves}
            if custom_loss:
                if ROW_WEIGHTS in aux:
                    aux = {**aux, ROW_WEIGHTS: _filled(weight, y, task.dtype)}
                losses = custom_loss(model, x, y, aux)
            else:
                losses = task.losses_stack(model, x, y)
            # The derivative of the weighted sum of the losses by each loss is its weight.
            grad_losses = weight if isinstance(weight, Tensor) else torch.full_like(losses, weight)
            gradients = torch.autograd.grad(losses, list(leaves.values()), grad_losses)
            return dict(zip(names, gradients, strict=True))

    return backward


def _filled(weight: Tensor | float, y: Tensor, dtype: torch.dtype) -> Tensor:
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


def _index(tree: State, which: Tensor | slice) -> State:
    """Index the leading axis of every tensor of a nested dictionary."""
    return {
        key: _index(value, which) if isinstance(value, dict) else value[which]
        for key, value in tree.items()
    }


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


def linear_gradients(
    names: LinearParamNames, logits: Tensor, x: Tensor, y: Tensor, weight: Tensor | float
) -> Params:
    """Compute the gradients of K weighted cross-entropies.

    `grad W = E^T x` and `grad b = sum_i E_i`, where `E = weight * (softmax(logits) - onehot(y))`.

    Args:
        names: Names of weight and bias.
        logits: Logits, `[K, B, C]`.
        x: Inputs, `[K, B, ...]`.
        y: Labels, `[K, B]`.
        weight: Weight of each example, `[K, B, 1]`, or one number for all.

    Returns:
        Gradients by name, `[K, C, F]` and `[K, C]`.
    """
    minus_one = logits.new_full((1,) * logits.dim(), -1.0)
    error = softmax_error(logits, y, minus_one).mul_(weight)
    result = {names[0]: torch.bmm(error.transpose(1, 2), x.flatten(2))}
    if names[1] is not None:
        result[names[1]] = error.sum(1)
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


class PaddedLinear:
    """K linear models in one tensor `[K, F', C']`, trained by plain SGD with weight decay.

    The bias is the weight of an input that is always one. Padded inputs are zero and padded
    classes have probability zero, so neither ever changes the model. Gradient and step are one
    batched product, in place.
    """

    def __init__(self, names: LinearParamNames, stack: Params, order: Tensor | None = None) -> None:
        """Copy the parameters into the padded tensor.

        Args:
            names: Names of weight and bias.
            stack: Weights `[K, C, F]` and biases `[K, C]`, by name.
            order: Order of the models `[K]`; None for that of the stack.
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
        self.weights[:, self.features, self.classes :] = PADDED_CLASS_BIAS
        self._minus_one = weight.new_full((1, 1, 1), -1.0)

    def step(
        self, x: Tensor, y: Tensor, rate: Tensor | float, decay_factor: Tensor | float
    ) -> None:
        """Update the first A models in place: `W <- decay_factor * W - x^T (rate * error)`.

        Args:
            x: Padded inputs of the first A models, `[A, B, F']`.
            y: Labels, `[A, B]`.
            rate: Learning rate times the weight of each example, one number or broadcastable to
                the errors `[A, B, C']`.
            decay_factor: 1 - lr * weight decay, one number or `[A, 1, 1]`.
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
        weights.baddbmm_(x.transpose(1, 2), error, alpha=scale)

    def params(self) -> Params:
        """Return weights `[K, C, F]` and biases `[K, C]` without padding, as copies."""
        weight = self.weights[:, : self.features, : self.classes].transpose(1, 2).contiguous()
        bias = self.weights[:, self.features, : self.classes].clone()
        return {self.names[0]: weight, self.names[1] or "": bias}


def _round_up(count: int) -> int:
    """Round up to a multiple of `VECTOR_SIZE`."""
    return -(-count // VECTOR_SIZE) * VECTOR_SIZE
