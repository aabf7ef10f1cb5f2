"""Low-rank adapters (LoRA): a frozen layer W learns as W + (alpha / rank) B A.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022 (arXiv:2106.09685).

PEFT is not used: its layers keep adapters by name inside the module and select one by state, while
a stack of clients needs them as plain parameters with one more axis, next to a base without it. So
the base is computed once for all clients of a stack, and their adapters are batched products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.config.schema import Options, constraint_of, option, option_types, parse
from equipoise.models.blocks import declare_blocks
from equipoise.utils.errors import UsageError, did_you_mean

CONVOLUTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}


@dataclass(frozen=True)
class LoraConfig(Options):
    """Options of adapters."""

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
        """Parse options as a user writes them.

        Args:
            text: Such as ``rank=8 targets=*.query,*.value``.

        Returns:
            The options.

        Raises:
            UsageError: If an option is unknown or its value is not allowed.
        """
        known = {item.name: item for item in fields(cls)}
        values = {}
        for word in text.split():
            name, equals, value = word.partition("=")
            if name not in known or not equals:
                raise UsageError(
                    f"adapter has '{word}': write name=value with {', '.join(known)}"
                    f"{did_you_mean(name, known)}"
                )
            values[name] = parse(name, value, option_types(cls)[name], constraint_of(known[name]))
        return cls(**values)

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the adapters of each layer, which are also the names of their blocks."""
        return _split_list(self.names)

    @property
    def scale(self) -> float:
        """Factor of the product B A."""
        return self.alpha / self.rank if self.alpha else 1.0


class LowRankFactors(nn.Module):
    """The factors A and B of one adapter; B starts at zero, so the model starts as its base."""

    def __init__(self, a_shape: tuple[int, ...], b_shape: tuple[int, ...], like: Tensor) -> None:
        """Create A at random and B at zero.

        Args:
            a_shape: Shape of A.
            b_shape: Shape of B.
            like: The frozen weight, whose type and device the factors have.
        """
        super().__init__()
        self.A = nn.Parameter(like.new_empty(a_shape))
        self.B = nn.Parameter(like.new_zeros(b_shape))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))


class LoraLayer(nn.Module):
    """A frozen layer and its adapters; parameters of the layer keep their names.

    Attributes:
        weight: Weight of the frozen layer.
        bias: Bias of the frozen layer.
        scale: Factor of each product B A.
        adapters: Names of the adapters.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Module, adapter: LoraConfig) -> None:
        """Adapt a layer; its own weights stay frozen."""
        super().__init__()
        self.weight = layer.weight  # type: ignore[assignment]
        self.bias = layer.bias  # type: ignore[assignment]
        self.scale = adapter.scale
        self.adapters = adapter.blocks

    def factors(self) -> Iterator[LowRankFactors]:
        """Yield the factors of each adapter, in order."""
        for name in self.adapters:
            adapter = self.get_submodule(name)
            assert isinstance(adapter, LowRankFactors)
            yield adapter


class LoraLinear(LoraLayer):
    """A linear layer with adapters."""

    def __init__(self, layer: nn.Linear, adapter: LoraConfig) -> None:
        """Adapt a layer; its own weights stay frozen."""
        super().__init__(layer, adapter)
        for name in adapter.blocks:
            a_shape = (adapter.rank, layer.in_features)
            b_shape = (layer.out_features, adapter.rank)
            self.add_module(name, LowRankFactors(a_shape, b_shape, layer.weight.detach()))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., in]`` to ``[..., out]``."""
        out = F.linear(x, self.weight, self.bias)
        for factors in self.factors():
            out = out + self.scale * F.linear(F.linear(x, factors.A), factors.B)
        return out


class LoraConv1D(LoraLayer):
    """A ``transformers`` Conv1D (GPT-2) with adapters: linear, with weight ``[in, out]``."""

    def __init__(self, layer: nn.Module, adapter: LoraConfig) -> None:
        """Adapt a layer; its own weights stay frozen."""
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
        """Map ``[..., in]`` to ``[..., out]``."""
        out = F.linear(x, self.weight.T, self.bias)
        for factors in self.factors():
            out = out + self.scale * F.linear(F.linear(x, factors.A), factors.B)
        return out


class LoraConv(LoraLayer):
    """A convolution with adapters: A convolves to ``rank`` channels, B mixes them pointwise."""

    def __init__(self, layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, adapter: LoraConfig) -> None:
        """Adapt a layer; its own weights stay frozen."""
        super().__init__(layer, adapter)
        self.convolve = CONVOLUTIONS[type(layer)]
        self.groups = layer.groups
        self.geometry = {
            "stride": layer.stride,
            "padding": layer.padding,
            "dilation": layer.dilation,
        }
        points = [1] * len(layer.kernel_size)
        for name in adapter.blocks:
            a_shape = (adapter.rank, layer.in_channels, *layer.kernel_size)
            b_shape = (layer.out_channels, adapter.rank, *points)
            self.add_module(name, LowRankFactors(a_shape, b_shape, layer.weight.detach()))

    def forward(self, x: Tensor) -> Tensor:
        """Convolve ``[B, in, ...]`` to ``[B, out, ...]``."""
        out: Tensor = self.convolve(x, self.weight, self.bias, groups=self.groups, **self.geometry)
        for factors in self.factors():
            out = out + self.scale * self.convolve(
                self.convolve(x, factors.A, **self.geometry), factors.B
            )
        return out


def add_adapters(module: nn.Module, adapter: LoraConfig, seed: int) -> nn.Module:
    """Freeze a module but for new adapters, and for the parameters that ``train`` names.

    Each adapter becomes a block, and the trained parameters of the base the block ``head``.

    Args:
        module: The module, changed in place.
        adapter: Options.
        seed: Seed of the adapters' initialisation.

    Returns:
        The module.

    Raises:
        UsageError: If names or patterns are wrong, or no layer can have an adapter.
    """
    _check_names(adapter)
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    head = _unfreeze(module, adapter.train)
    _check_targets(module, adapter)
    targets = [
        (name, layer)
        for name, layer in module.named_modules()
        if name
        and _is_adaptable(layer)
        and _matches(name, adapter.targets)
        and not any(p.requires_grad for p in layer.parameters())
    ]
    if not targets:
        raise UsageError(
            "the model has no linear or convolutional layer for an adapter beside those that train"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, layer in targets:
            parent, _, own = name.rpartition(".")
            setattr(module.get_submodule(parent), own, _lora_layer(layer, adapter))
    blocks = {
        block: tuple(f"{name}.{block}.{factor}" for name, _ in targets for factor in ("A", "B"))
        for block in adapter.blocks
    }
    if head:
        blocks["head"] = head
    declare_blocks(module, blocks)
    return module


def _lora_layer(layer: nn.Module, adapter: LoraConfig) -> LoraLayer:
    """Return the layer with adapters."""
    if isinstance(layer, nn.Linear):
        return LoraLinear(layer, adapter)
    if _is_transformers_conv1d(layer):
        return LoraConv1D(layer, adapter)
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return LoraConv(layer, adapter)


def _unfreeze(module: nn.Module, patterns: str) -> tuple[str, ...]:
    """Unfreeze the parameters that match patterns, and return their names."""
    names = [name for name, _ in module.named_parameters()]
    for pattern in _split_list(patterns):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(
                f"adapter train={pattern} matches no parameter; the model has "
                f"{', '.join(names[:4])}, …"
            )
    head = tuple(name for name in names if patterns and _matches(name, patterns))
    for name in head:
        module.get_parameter(name).requires_grad_(True)
    return head


def _check_names(adapter: LoraConfig) -> None:
    """Refuse names of adapters that are taken or given twice."""
    for name in adapter.blocks:
        reserved = name in ("weight", "bias", "head", "backbone") or hasattr(nn.Module, name)
        if reserved or not name.isidentifier():
            raise UsageError(
                f"adapter names={adapter.names}: '{name}' cannot be the name of an adapter"
            )
    if not adapter.blocks or len(set(adapter.blocks)) < len(adapter.blocks):
        raise UsageError(f"adapter names={adapter.names}: give each adapter a name of its own")


def _check_targets(module: nn.Module, adapter: LoraConfig) -> None:
    """Refuse a pattern that matches no layer that can have an adapter."""
    layers = {name: layer for name, layer in module.named_modules() if name}
    adaptable = [name for name, layer in layers.items() if _is_adaptable(layer)]
    for pattern in _split_list(adapter.targets):
        matched = [name for name in layers if fnmatchcase(name, pattern)]
        if any(name in adaptable for name in matched):
            continue
        problem = "matches no layer"
        if matched:
            kind = type(layers[matched[0]]).__name__
            problem = f"matches '{matched[0]}', a {kind}, and no linear or convolutional layer"
        raise UsageError(
            f"adapter targets={pattern} {problem}; adapters fit "
            f"{', '.join(adaptable[:6]) or 'none here'}"
        )


def _is_adaptable(layer: nn.Module) -> bool:
    """Return whether a layer can have an adapter.

    Subclasses cannot: they may use their weight in other ways than by calling the layer.
    """
    convolves = type(layer) in CONVOLUTIONS and layer.padding_mode == "zeros"
    return type(layer) is nn.Linear or convolves or _is_transformers_conv1d(layer)


def _is_transformers_conv1d(layer: nn.Module) -> bool:
    """Compare by name, because ``transformers`` need not be installed."""
    return f"{type(layer).__module__}.{type(layer).__name__}" == "transformers.pytorch_utils.Conv1D"


def _matches(name: str, patterns: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _split_list(patterns))


def _split_list(text: str) -> tuple[str, ...]:
    """Split a list with commas."""
    return tuple(item for item in text.split(",") if item)
