"""The closed form for linear models: cross-entropy gradients of K clients by batched products alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise.contract import Tree

Names = tuple[str, str | None]


def names_of(module: nn.Module) -> Names | None:
    """Names of weight and bias if the module is one linear layer (behind flattening at most), else ``None``."""
    layers = [(name, layer) for name, layer in module.named_modules() if not list(layer.children())]
    linear = [(name, layer) for name, layer in layers if isinstance(layer, nn.Linear)]
    others = [layer for _, layer in layers if not isinstance(layer, nn.Linear | nn.Flatten | nn.Identity)]
    plain = type(module) in (nn.Linear, nn.Sequential)
    if not plain or len(linear) != 1 or others:
        return None
    prefix = f"{linear[0][0]}." if linear[0][0] else ""
    return f"{prefix}weight", f"{prefix}bias" if linear[0][1].bias is not None else None


def errors(logits: Tensor, y: Tensor) -> Tensor:
    """softmax - onehot, of every sample."""
    return torch.softmax(logits, -1).scatter_(-1, y.unsqueeze(-1), -1.0, reduce="add")


def gradients(names: Names, logits: Tensor, x: Tensor, y: Tensor, weight: Tensor | float) -> Tree:
    """Gradient of each client's weighted cross-entropy: (softmax - onehot)^T x, and its column sums for the bias."""
    error = errors(logits, y).mul_(weight)
    result = {names[0]: torch.bmm(error.transpose(1, 2), x.flatten(2))}
    if names[1] is not None:
        result[names[1]] = error.sum(1)
    return result


def plain_step(names: Names, stack: Tree, logits: Tensor, x: Tensor, y: Tensor, rate: Tensor | float) -> None:
    """One step of SGD without corrections, in place: the product of error and inputs goes straight into the weights.

    ``rate``: learning rate times weight of each sample, one number for all or broadcasting against the errors.
    """
    error, scale = errors(logits, y), -1.0
    if isinstance(rate, Tensor):
        error.mul_(rate)
    else:
        scale = -rate
    stack[names[0]].baddbmm_(error.transpose(1, 2), x.flatten(2), alpha=scale)
    if names[1] is not None:
        stack[names[1]].add_(error.sum(1), alpha=scale)
