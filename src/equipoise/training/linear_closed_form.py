"""Closed-form cross-entropy gradients of K linear models, by batched matrix products alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise.core import Params

LinearParamNames = tuple[str, str | None]
"""Names of the weight and of the bias, None without a bias."""
VECTOR_SIZE = 16
"""Pad to multiples of this many numbers: products and softmax are 25 % faster on whole vectors."""
PADDED_CLASS_BIAS = -1e9
"""Bias of padded classes: their softmax probability is exactly zero."""


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


def softmax_error(logits: Tensor, y: Tensor) -> Tensor:
    """Compute `softmax(logits) - onehot(y)`, the derivative of cross-entropy by the logits.

    Args:
        logits: Logits, `[..., C]`.
        y: Labels, `[...]`.

    Returns:
        Errors, `[..., C]`.
    """
    y = y.unsqueeze(-1)
    return torch.softmax(logits, -1).scatter_add_(-1, y, logits.new_full((), -1.0).expand(y.shape))


def gradients(
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
    error = softmax_error(logits, y).mul_(weight)
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

    def __init__(self, names: LinearParamNames, stack: Params) -> None:
        """Copy the parameters into the padded tensor.

        Args:
            names: Names of weight and bias.
            stack: Weights `[K, C, F]` and biases `[K, C]`, by name.
        """
        weight = stack[names[0]]
        self.names = names
        clients, self.classes, self.features = weight.shape
        self.weights = weight.new_zeros(
            clients, _round_up(self.features + 1), _round_up(self.classes)
        )
        self.weights[:, : self.features, : self.classes] = weight.transpose(1, 2)
        self.weights[:, self.features, : self.classes] = stack[names[1] or ""]
        self.weights[:, self.features, self.classes :] = PADDED_CLASS_BIAS

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
        error = softmax_error(torch.bmm(x, weights), y)
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
