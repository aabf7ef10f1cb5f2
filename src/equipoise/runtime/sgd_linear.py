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


def gradients(names: Names, logits: Tensor, x: Tensor, y: Tensor, weight: Tensor | float) -> Tree:
    """Gradient of each client's weighted cross-entropy: (softmax - onehot)^T x, and its column sums for the bias."""
    error = torch.softmax(logits, -1)
    index = y.unsqueeze(-1)
    error.scatter_add_(-1, index, error.new_full((), -1.0).expand(index.shape))
    error.mul_(weight)
    result = {names[0]: torch.bmm(error.transpose(1, 2), x.flatten(2))}
    if names[1] is not None:
        result[names[1]] = error.sum(1)
    return result
