"""The closed form for linear models: cross-entropy gradients of K clients by batched products alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise.core import Params

Names = tuple[str, str | None]
LANES = 16  # products and softmax are a quarter faster on whole vectors of so many numbers


def names_of(module: nn.Module) -> Names | None:
    """Names of weight and bias if the module is one linear layer (behind flattening at most) with nothing frozen."""
    layers = [(name, layer) for name, layer in module.named_modules() if not list(layer.children())]
    linear = [(name, layer) for name, layer in layers if isinstance(layer, nn.Linear)]
    others = [
        layer for _, layer in layers if not isinstance(layer, nn.Linear | nn.Flatten | nn.Identity)
    ]
    plain = type(module) in (nn.Linear, nn.Sequential)
    if (
        not plain
        or len(linear) != 1
        or others
        or not all(p.requires_grad for p in module.parameters())
    ):
        return None
    prefix = f"{linear[0][0]}." if linear[0][0] else ""
    return f"{prefix}weight", f"{prefix}bias" if linear[0][1].bias is not None else None


def errors(logits: Tensor, y: Tensor) -> Tensor:
    """softmax - onehot, of every sample."""
    y = y.unsqueeze(-1)
    return torch.softmax(logits, -1).scatter_add_(-1, y, logits.new_full((), -1.0).expand(y.shape))


def gradients(names: Names, logits: Tensor, x: Tensor, y: Tensor, weight: Tensor | float) -> Params:
    """Gradient of each client's weighted cross-entropy: (softmax - onehot)^T x, and its column sums for the bias."""
    error = errors(logits, y).mul_(weight)
    result = {names[0]: torch.bmm(error.transpose(1, 2), x.flatten(2))}
    if names[1] is not None:
        result[names[1]] = error.sum(1)
    return result


def with_lanes(x: Tensor) -> Tensor:
    """Inputs ``[M, F]`` with a one for the bias behind, padded with zeros to whole vectors."""
    rows, features = x.shape
    wide = x.new_zeros(rows, _whole(features + 1))
    wide[:, :features] = x
    wide[:, features] = 1.0
    return wide


class Laned:
    """K linear models as one stack ``[K, inputs, classes]``, padded to whole vectors, under SGD without corrections.

    The bias is the weight of an input that is always one. Padded classes have so low a bias that their probability is
    exactly zero, so nothing ever moves them, and padded inputs are zero. Gradient and step are one product, in place.
    """

    def __init__(self, names: Names, stack: Params) -> None:
        weight, bias = stack[names[0]], stack[names[1] or ""]
        self.names, (clients, self.classes, self.features) = names, weight.shape
        self.table = weight.new_zeros(clients, _whole(self.features + 1), _whole(self.classes))
        self.table[:, : self.features, : self.classes] = weight.transpose(1, 2)
        self.table[:, self.features, : self.classes] = bias
        self.table[:, self.features, self.classes :] = -1e9

    def step(self, x: Tensor, y: Tensor, rate: Tensor | float, kept: Tensor | float) -> None:
        """``x [a, B, inputs]`` of the first ``a`` models; ``rate``: learning rate times weight of each sample, one
        number for all or broadcasting against the errors; ``kept``: what weight decay leaves."""
        table = self.table[: len(x)]
        error, scale = errors(torch.bmm(x, table), y), -1.0
        if isinstance(rate, Tensor):
            error.mul_(rate)
        else:
            scale = -rate
        if isinstance(kept, Tensor) or kept != 1.0:
            table.mul_(kept)
        table.baddbmm_(x.transpose(1, 2), error, alpha=scale)

    def params(self) -> Params:
        weight = self.table[:, : self.features, : self.classes].transpose(1, 2).contiguous()
        return {
            self.names[0]: weight,
            self.names[1] or "": self.table[:, self.features, : self.classes].clone(),
        }


def _whole(numbers: int) -> int:
    return -(-numbers // LANES) * LANES
