"""Forward passes of many models of one architecture at once, for modules made of layers with a batched form.

``torch.func.vmap`` maps any module; writing the batched products out saves its bookkeeping in every local step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from equipoise.contract import Tree
from equipoise.models.adapters import AdaptedLinear

Forward = Callable[[Tree, Tensor], Tensor]
"""Stacked parameters and inputs ``[K, B, ...]`` to outputs ``[K, B, ...]``."""

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Identity)


def stacked_forward(module: nn.Module) -> Forward | None:
    """The batched forward pass, or ``None`` if a layer has no batched form here."""
    return _forward(module, "")


def _forward(module: nn.Module, prefix: str) -> Forward | None:
    if type(module) is nn.Sequential:
        layers = [_forward(layer, f"{prefix}{name}.") for name, layer in module.named_children()]
        return None if any(layer is None for layer in layers) else _chain([layer for layer in layers if layer])
    if type(module) is nn.Linear:
        return _linear(module, f"{prefix}weight", f"{prefix}bias")
    if type(module) is AdaptedLinear:
        return _adapted(module, prefix)
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return lambda stack, x: x.flatten(2)
    if type(module) in ELEMENTWISE:
        layer: Callable[[Tensor], Tensor] = module
        return lambda stack, x: layer(x)
    return None


def _chain(layers: list[Forward]) -> Forward:
    def forward(stack: Tree, x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(stack, x)
        return x

    return forward


def _linear(layer: nn.Linear | AdaptedLinear, weight: str, bias: str) -> Forward:
    """Frozen parameters are not in the stack: one product with the layer's own serves all clients."""

    def forward(stack: Tree, x: Tensor) -> Tensor:
        if weight not in stack:
            shared = F.linear(x, layer.weight, None if bias in stack else layer.bias)
            return shared + stack[bias].unsqueeze(1) if bias in stack else shared
        own, w = stack[bias].unsqueeze(1) if bias in stack else layer.bias, stack[weight].transpose(1, 2)
        return torch.bmm(x, w) if own is None else torch.baddbmm(own, x, w)

    return forward


def _adapted(layer: AdaptedLinear, prefix: str) -> Forward:
    """One pass of the base for the whole stack, and two thin batched products for each adapter."""
    base = _linear(layer, f"{prefix}weight", f"{prefix}bias")

    def forward(stack: Tree, x: Tensor) -> Tensor:
        out = base(stack, x)
        for name in layer.adapters:
            down, up = (stack[f"{prefix}{name}.{part}"].transpose(1, 2) for part in ("A", "B"))
            out = out.baddbmm_(torch.bmm(x, down), up, alpha=layer.scale)  # nobody else has the base's product
        return out

    return forward
