"""Low-rank adapters (Hu et al., 2022): a frozen layer W learns as W + (alpha / rank) B A, with B and A of low rank.

These few lines and not PEFT: its layers keep adapters by name inside the module and choose among them by state, where a
stack of clients needs them as one more axis of plain parameters, next to a base that has none. So the base is computed
once for all clients of a stack, and their adapters are batched products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.config.parsing import parse
from equipoise.config.schema import Options, constraint_of, option, option_types
from equipoise.models.blocks import declare_blocks
from equipoise.utils.errors import UsageError, nearest

CONVOLVE: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}


@dataclass(frozen=True)
class LoraConfig(Options):
    """What the user says of adapters."""

    rank: int = option(8, "rank of each adapter", low=1)
    targets: str = option(
        "*", "layers that have one, as patterns of their names with commas between"
    )
    names: str = option(
        "adapter", "adapters of each layer, which add up; each is a block of its own"
    )
    train: str = option(
        "", "parameters of the base that learn as well, as patterns; they are the block 'head'"
    )
    alpha: float = option(
        0.0, "strength: products are scaled by alpha / rank; 0 for the rank itself", low=0
    )

    @classmethod
    def parse(cls, text: str) -> LoraConfig:
        """From ``rank=8 targets=*.query,*.value``."""
        known, values = {item.name: item for item in fields(cls)}, {}
        for word in text.split():
            name, equals, value = word.partition("=")
            if name not in known or not equals:
                raise UsageError(
                    f"adapter has '{word}': write name=value with {', '.join(known)}{nearest(name, known)}"
                )
            values[name] = parse(name, value, option_types(cls)[name], constraint_of(known[name]))
        return cls(**values)

    @property
    def blocks(self) -> tuple[str, ...]:
        return _listed(self.names)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank if self.alpha else 1.0


class LowRankFactors(nn.Module):
    """B and A of one layer; B starts at zero, so that the model starts as its base."""

    def __init__(self, down: tuple[int, ...], up: tuple[int, ...], like: Tensor) -> None:
        super().__init__()
        self.A = nn.Parameter(like.new_empty(down))
        self.B = nn.Parameter(like.new_zeros(up))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))


class LoraLayer(nn.Module):
    """A frozen layer and its adapters; parameters of the layer keep their names."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Module, adapter: LoraConfig) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias  # type: ignore[assignment]
        self.scale, self.adapters = adapter.scale, adapter.blocks

    def factors(self) -> Iterator[LowRankFactors]:
        """The adapters, in their order."""
        for name in self.adapters:
            adapter = self.get_submodule(name)
            assert isinstance(adapter, LowRankFactors)
            yield adapter


class LoraLinear(LoraLayer):
    """A linear layer with its adapters."""

    def __init__(self, layer: nn.Linear, adapter: LoraConfig) -> None:
        super().__init__(layer, adapter)
        for name in adapter.blocks:
            low = (adapter.rank, layer.in_features), (layer.out_features, adapter.rank)
            self.add_module(name, LowRankFactors(*low, layer.weight.detach()))

    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight, self.bias)
        for low in self.factors():
            out = out + self.scale * F.linear(F.linear(x, low.A), low.B)
        return out


class LoraConv1D(LoraLayer):
    """A linear layer that keeps its weight as ``[inputs, outputs]``: what ``transformers`` calls Conv1D, in GPT-2."""

    def __init__(self, layer: nn.Module, adapter: LoraConfig) -> None:
        super().__init__(layer, adapter)
        inputs, outputs = self.weight.shape
        for name in adapter.blocks:
            self.add_module(
                name,
                LowRankFactors(
                    (adapter.rank, inputs), (outputs, adapter.rank), self.weight.detach()
                ),
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight.T, self.bias)
        for low in self.factors():
            out = out + self.scale * F.linear(F.linear(x, low.A), low.B)
        return out


class LoraConv(LoraLayer):
    """A convolution with its adapters: A convolves to ``rank`` channels, B mixes them point by point."""

    def __init__(self, layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, adapter: LoraConfig) -> None:
        super().__init__(layer, adapter)
        self.convolve = CONVOLVE[type(layer)]
        self.groups = layer.groups
        self.how = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
        points = [1] * len(layer.kernel_size)
        for name in adapter.blocks:
            down = (adapter.rank, layer.in_channels, *layer.kernel_size)
            up = (layer.out_channels, adapter.rank, *points)
            self.add_module(name, LowRankFactors(down, up, layer.weight.detach()))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.convolve(x, self.weight, self.bias, groups=self.groups, **self.how)
        for low in self.factors():
            out = out + self.scale * self.convolve(self.convolve(x, low.A, **self.how), low.B)
        return out


def add_adapters(module: nn.Module, adapter: LoraConfig, seed: int) -> nn.Module:
    """The module, in place, frozen but for its adapters and what ``train`` names; adapters are drawn by ``seed``."""
    _refuse_names(adapter)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    head = _trained(module, adapter.train)
    _refuse_targets(module, adapter)
    layers = [(name, layer) for name, layer in module.named_modules() if name and _may(layer)]
    wanted = [(name, layer) for name, layer in layers if _matches(name, adapter.targets)]
    wanted = [
        (name, layer)
        for name, layer in wanted
        if not any(p.requires_grad for p in layer.parameters())
    ]
    if not wanted:
        raise UsageError(
            "the model has no linear or convolutional layer for an adapter beside those that train"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, layer in wanted:
            parent, _, own = name.rpartition(".")
            setattr(module.get_submodule(parent), own, _over(layer, adapter))
    blocks = {
        block: tuple(f"{name}.{block}.{part}" for name, _ in wanted for part in ("A", "B"))
        for block in adapter.blocks
    }
    declare_blocks(module, {**blocks, "head": head} if head else blocks)
    return module


def _over(layer: nn.Module, adapter: LoraConfig) -> LoraLayer:
    if isinstance(layer, nn.Linear):
        return LoraLinear(layer, adapter)
    if _is_product(layer):
        return LoraConv1D(layer, adapter)
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return LoraConv(layer, adapter)


def _trained(module: nn.Module, patterns: str) -> tuple[str, ...]:
    every = [name for name, _ in module.named_parameters()]
    for pattern in _listed(patterns):
        if not any(fnmatchcase(name, pattern) for name in every):
            raise UsageError(
                f"adapter train={pattern} matches no parameter; the model has {', '.join(every[:4])}, …"
            )
    head = tuple(name for name in every if patterns and _matches(name, patterns))
    for name in head:
        module.get_parameter(name).requires_grad_(True)
    return head


def _refuse_names(adapter: LoraConfig) -> None:
    for name in adapter.blocks:
        if (
            not name.isidentifier()
            or name in ("weight", "bias", "head", "backbone")
            or hasattr(nn.Module, name)
        ):
            raise UsageError(
                f"adapter names={adapter.names}: '{name}' cannot be the name of an adapter"
            )
    if not adapter.blocks or len(set(adapter.blocks)) < len(adapter.blocks):
        raise UsageError(f"adapter names={adapter.names}: give each adapter a name of its own")


def _refuse_targets(module: nn.Module, adapter: LoraConfig) -> None:
    """Each pattern must match a layer that can have an adapter."""
    for pattern in _listed(adapter.targets):
        found = {
            name: layer
            for name, layer in module.named_modules()
            if name and fnmatchcase(name, pattern)
        }
        if not any(_may(layer) for layer in found.values()):
            able = [name for name, layer in module.named_modules() if name and _may(layer)]
            what = "matches no layer"
            if found:
                name, layer = next(iter(found.items()))
                what = f"matches '{name}', a {type(layer).__name__}, and no linear or convolutional layer"
            raise UsageError(
                f"adapter targets={pattern} {what}; adapters fit {', '.join(able[:6]) or 'none here'}"
            )


def _may(layer: nn.Module) -> bool:
    """Exactly these: a subclass may use its weight otherwise than by calling the layer."""
    convolves = type(layer) in CONVOLVE and layer.padding_mode == "zeros"
    return type(layer) is nn.Linear or convolves or _is_product(layer)


def _is_product(layer: nn.Module) -> bool:
    """By name, for the library need not be there."""
    return f"{type(layer).__module__}.{type(layer).__name__}" == "transformers.pytorch_utils.Conv1D"


def _matches(name: str, patterns: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _listed(patterns))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(item for item in text.split(",") if item)
