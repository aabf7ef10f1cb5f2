"""Batch normalisation and dropout as clients train them: the same on every executor and after a resume.

A training step tells these layers what they need through their buffers ``rows`` and ``key``, which a model's parameters
carry along for that step; without them a layer evaluates. Padding behind a short batch takes no part in statistics.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from equipoise.utils.errors import UsageError

_GOLDEN, _FIRST, _SECOND = (
    word - 2**64 for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
BITS = 24  # of a random word, that decide whether a value is dropped


class BatchNorm(nn.Module):
    """As ``nn.BatchNorm``, over the first ``rows`` of a batch; a single value takes the running statistics."""

    running_mean: Tensor
    running_var: Tensor
    rows: Tensor

    def __init__(self, like: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        assert like.running_mean is not None
        assert like.running_var is not None
        assert like.momentum is not None
        self.eps, self.momentum = like.eps, like.momentum
        self.weight, self.bias = like.weight, like.bias
        self.register_buffer("running_mean", like.running_mean)
        self.register_buffer("running_var", like.running_var)
        self.register_buffer("rows", torch.zeros(0, dtype=torch.int64), persistent=False)

    def reset_parameters(self) -> None:
        """As at the start of ``nn.BatchNorm``."""
        with torch.no_grad():
            self.running_mean.zero_()
            self.running_var.fill_(1)
            if self.weight is not None:
                self.weight.fill_(1)
                self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        wide = (-1, *[1] * (x.dim() - 2))
        if self.rows.dim() == 0:
            mean, var = self._seen(x)
        scale = (
            var.clamp(min=0) + self.eps
        ).rsqrt()  # a server's momentum may push a variance below zero
        out = (x - mean.view(wide)) * scale.view(wide)
        return out if self.weight is None else out * self.weight.view(wide) + self.bias.view(wide)

    def _seen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the batch, which the running ones follow."""
        own = (
            (torch.arange(len(x), device=x.device) < self.rows)
            .to(x.dtype)
            .view(-1, *[1] * (x.dim() - 1))
        )
        over = [0, *range(2, x.dim())]
        count = (self.rows * (x[0, 0].numel())).to(x.dtype)
        mean = (x * own).sum(over) / count
        apart = (x - mean.view(-1, *[1] * (x.dim() - 2))) * own
        var = apart.square().sum(over) / count
        several = count > 1
        mean = torch.where(several, mean, self.running_mean)
        var = torch.where(several, var, self.running_var)
        with torch.no_grad():
            unbiased = torch.where(several, var * count / (count - 1).clamp(min=1), var)
            self.running_mean.copy_(self.running_mean.lerp(mean.detach(), self.momentum))
            self.running_var.copy_(self.running_var.lerp(unbiased.detach(), self.momentum))
        return mean, var


class Dropout(nn.Module):
    """As ``nn.Dropout`` and its kin for whole channels; what is dropped depends on the step's key and on places."""

    key: Tensor

    def __init__(self, p: float, channels: bool, place: int) -> None:
        super().__init__()
        self.p, self.channels, self.place = p, channels, place
        self.register_buffer("key", torch.zeros(0, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.key.dim() != 0 or self.p == 0:
            return x
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if self.channels else x.shape
        count = int(torch.Size(shape).numel())
        steps = torch.arange(1, count + 1, device=x.device).mul(_GOLDEN).view(shape)
        words = _mixed(_mixed(self.key + (self.place + 1) * 2**32) + steps)
        kept = _shifted(words, 64 - BITS) >= round(self.p * 2**BITS)
        return x * kept.to(x.dtype) / (1 - self.p) if self.p < 1 else x * 0


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right of words that are held as signed numbers."""
    shifted: Tensor = (z >> bits) & (2 ** (64 - bits) - 1)
    return shifted


def _mixed(z: Tensor) -> Tensor:
    """The finaliser of splitmix64, as in :mod:`equipoise.utils.rng`."""
    z = (z ^ _shifted(z, 30)) * _FIRST
    z = (z ^ _shifted(z, 27)) * _SECOND
    return z ^ _shifted(z, 31)


def with_reproducible_layers(module: nn.Module) -> nn.Module:
    """The module, in place, with layers that can be trained anywhere alike; frozen normalisation only evaluates."""
    places = 0
    for name, layer in list(module.named_modules())[1:]:
        parent, _, own = name.rpartition(".")
        new: nn.Module | None = None
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            _refuse_norm(name, layer)
            new = layer.eval() if _frozen(layer) else BatchNorm(layer)
        elif isinstance(layer, nn.modules.dropout._DropoutNd):
            if isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout):
                raise UsageError(
                    f"layer '{name}' is {type(layer).__name__}, which is not offered: use Dropout"
                )
            whole = isinstance(layer, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d)
            new, places = Dropout(layer.p, whole, places), places + 1
        if new is not None:
            setattr(module.get_submodule(parent), own, new)
    return module


def batch_norm_layers(module: nn.Module) -> Iterator[tuple[str, BatchNorm]]:
    """The layers whose statistics move, by name."""
    layers = (
        (name, layer) for name, layer in module.named_modules() if isinstance(layer, BatchNorm)
    )
    return ((name, layer) for name, layer in layers if not _frozen(layer))


def dropout_layers(module: nn.Module) -> Iterator[tuple[str, Dropout]]:
    """The layers that drop, by name."""
    return ((name, layer) for name, layer in module.named_modules() if isinstance(layer, Dropout))


def running_stat_names(module: nn.Module) -> tuple[str, ...]:
    """What moves without a gradient: running means and variances."""
    return tuple(
        f"{name}.{own}"
        for name, _ in batch_norm_layers(module)
        for own in ("running_mean", "running_var")
    )


def _frozen(layer: nn.Module) -> bool:
    own = list(layer.parameters())
    return bool(own) and not any(parameter.requires_grad for parameter in own)


def _refuse_norm(name: str, layer: nn.modules.batchnorm._BatchNorm) -> None:
    if isinstance(layer, nn.SyncBatchNorm | nn.modules.lazy.LazyModuleMixin):
        raise UsageError(f"layer '{name}' is {type(layer).__name__}: use plain BatchNorm")
    if layer.running_mean is None or layer.momentum is None:
        what = "has no running statistics" if layer.running_mean is None else "has momentum=None"
        raise UsageError(
            f"layer '{name}' is batch normalisation that {what}: use its defaults, or GroupNorm"
        )
