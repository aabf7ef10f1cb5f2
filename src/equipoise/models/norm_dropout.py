"""Batch normalisation and dropout that give the same result on every executor and after a resume.

A training step passes these layers what they need through their buffers ``rows`` (rows of the batch
that are not padding) and ``key`` (randomness of the step), which are part of the parameters of that
step. Without them a layer is in evaluation mode. Padding takes no part in batch statistics.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from equipoise.utils.errors import UsageError

# Constants of splitmix64, as signed 64-bit integers.
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64
RANDOM_BITS = 24  # of a random word that decide whether a value is dropped

BatchNormLayer = (
    nn.BatchNorm1d
    | nn.BatchNorm2d
    | nn.BatchNorm3d
    | nn.SyncBatchNorm
    | nn.LazyBatchNorm1d
    | nn.LazyBatchNorm2d
    | nn.LazyBatchNorm3d
)
DropoutLayer = (
    nn.Dropout
    | nn.Dropout1d
    | nn.Dropout2d
    | nn.Dropout3d
    | nn.AlphaDropout
    | nn.FeatureAlphaDropout
)


class BatchNorm(nn.Module):
    """Batch normalisation over the first ``rows`` rows of a batch.

    Where a batch has a single value per channel, the running statistics are used instead.
    """

    running_mean: Tensor
    running_var: Tensor
    rows: Tensor

    def __init__(self, like: BatchNormLayer) -> None:
        """Create the layer with the weights and statistics of another."""
        super().__init__()
        assert like.running_mean is not None
        assert like.running_var is not None
        assert like.momentum is not None
        self.eps = like.eps
        self.momentum = like.momentum
        self.weight = like.weight
        self.bias = like.bias
        self.register_buffer("running_mean", like.running_mean)
        self.register_buffer("running_var", like.running_var)
        self.register_buffer("rows", torch.zeros(0, dtype=torch.int64), persistent=False)

    def reset_parameters(self) -> None:
        """Initialise as ``nn.BatchNorm`` does."""
        with torch.no_grad():
            self.running_mean.zero_()
            self.running_var.fill_(1)
            if self.weight is not None:
                self.weight.fill_(1)
                self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[B, C, ...]``; a scalar ``rows`` means training mode."""
        per_channel = (-1, *[1] * (x.dim() - 2))
        if self.rows.dim() == 0:
            mean, var = self._batch_statistics(x)
        else:
            mean = self.running_mean
            var = self.running_var
        # A server's momentum may make an averaged variance negative.
        scale = (var.clamp(min=0) + self.eps).rsqrt()
        out = (x - mean.view(per_channel)) * scale.view(per_channel)
        if self.weight is None:
            return out
        return out * self.weight.view(per_channel) + self.bias.view(per_channel)

    def _batch_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance ``[C]`` of the batch, and update the running ones."""
        is_real = (torch.arange(len(x), device=x.device) < self.rows).to(x.dtype)
        is_real = is_real.view(-1, *[1] * (x.dim() - 1))
        over = [0, *range(2, x.dim())]
        count = (self.rows * (x[0, 0].numel())).to(x.dtype)
        mean = (x * is_real).sum(over) / count
        deviation = (x - mean.view(-1, *[1] * (x.dim() - 2))) * is_real
        var = deviation.square().sum(over) / count
        several = count > 1
        mean = torch.where(several, mean, self.running_mean)
        var = torch.where(several, var, self.running_var)
        with torch.no_grad():
            unbiased = torch.where(several, var * count / (count - 1).clamp(min=1), var)
            self.running_mean.copy_(self.running_mean.lerp(mean.detach(), self.momentum))
            self.running_var.copy_(self.running_var.lerp(unbiased.detach(), self.momentum))
        return mean, var


class Dropout(nn.Module):
    """Dropout of values or of whole channels, as a function of the step's key.

    Attributes:
        p: Probability that a value is dropped.
        channels: Whether whole channels are dropped.
        place: Index of this layer among the model's dropout layers: each draws its own mask.
    """

    key: Tensor

    def __init__(self, p: float, channels: bool, position: int) -> None:
        """Create a layer that drops values, or whole channels.

        Args:
            p: Probability of dropping a value.
            channels: Whether whole channels are dropped.
            position: Number of the layer in the network, which its draws depend on.
        """
        super().__init__()
        self.p = p
        self.channels = channels
        self.place = position
        self.register_buffer("key", torch.zeros(0, dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Drop values; a scalar ``key`` means training mode."""
        if self.key.dim() != 0 or self.p == 0:
            return x
        if self.p >= 1:
            return x * 0
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if self.channels else x.shape
        count = int(torch.Size(shape).numel())
        steps = torch.arange(1, count + 1, device=x.device).mul(_GOLDEN_GAMMA).view(shape)
        random = _splitmix(_splitmix(self.key + (self.place + 1) * 2**32) + steps)
        mask = _logical_shift(random, 64 - RANDOM_BITS) >= round(self.p * 2**RANDOM_BITS)
        out: Tensor = x * mask.to(x.dtype) / (1 - self.p)
        return out


def _logical_shift(z: Tensor, bits: int) -> Tensor:
    """Shift unsigned words, stored as int64, to the right."""
    shifted: Tensor = (z >> bits) & (2 ** (64 - bits) - 1)
    return shifted


def _splitmix(z: Tensor) -> Tensor:
    """Apply the finaliser of splitmix64, as in :mod:`equipoise.utils.rng`."""
    z = (z ^ _logical_shift(z, 30)) * _MIX_1
    z = (z ^ _logical_shift(z, 27)) * _MIX_2
    return z ^ _logical_shift(z, 31)


def with_reproducible_layers(module: nn.Module) -> nn.Module:
    """Replace batch normalisation and dropout by the layers of this module.

    Args:
        module: The module, changed in place. Frozen batch normalisation is kept, in evaluation
            mode.

    Returns:
        The module.

    Raises:
        UsageError: If a layer has no reproducible form.
    """
    num_dropouts = 0
    for name, layer in list(module.named_modules())[1:]:
        parent, _, own = name.rpartition(".")
        new: nn.Module | None = None
        if isinstance(layer, BatchNormLayer):
            _check_batch_norm(name, layer)
            new = layer.eval() if _frozen(layer) else BatchNorm(layer)
        elif isinstance(layer, DropoutLayer):
            if isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout):
                raise UsageError(
                    f"layer '{name}' is {type(layer).__name__}, which is not offered: use Dropout"
                )
            channels = isinstance(layer, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d)
            new = Dropout(layer.p, channels, num_dropouts)
            num_dropouts += 1
        if new is not None:
            setattr(module.get_submodule(parent), own, new)
    return module


def batch_norm_layers(module: nn.Module) -> Iterator[tuple[str, BatchNorm]]:
    """Return the batch normalisation layers that are not frozen, with their names."""
    layers = (
        (name, layer) for name, layer in module.named_modules() if isinstance(layer, BatchNorm)
    )
    return ((name, layer) for name, layer in layers if not _frozen(layer))


def dropout_layers(module: nn.Module) -> Iterator[tuple[str, Dropout]]:
    """Return the dropout layers, with their names."""
    return ((name, layer) for name, layer in module.named_modules() if isinstance(layer, Dropout))


def running_stat_names(module: nn.Module) -> tuple[str, ...]:
    """Return the names of running means and variances that are not frozen."""
    return tuple(
        f"{name}.{own}"
        for name, _ in batch_norm_layers(module)
        for own in ("running_mean", "running_var")
    )


def _frozen(layer: nn.Module) -> bool:
    """Return whether a layer has parameters, all of them frozen."""
    own = list(layer.parameters())
    return bool(own) and not any(parameter.requires_grad for parameter in own)


def _check_batch_norm(name: str, layer: BatchNormLayer) -> None:
    """Refuse kinds of batch normalisation that cannot be replaced."""
    if isinstance(layer, nn.SyncBatchNorm | nn.modules.lazy.LazyModuleMixin):
        raise UsageError(f"layer '{name}' is {type(layer).__name__}: use plain BatchNorm")
    if layer.running_mean is None or layer.momentum is None:
        problem = "has momentum=None"
        if layer.running_mean is None:
            problem = "has no running statistics"
        raise UsageError(
            f"layer '{name}' is batch normalisation that {problem}: use its defaults, or GroupNorm"
        )
