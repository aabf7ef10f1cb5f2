"""Forward passes of many models of one architecture at once, for modules made of layers with a batched form.

``torch.func.vmap`` maps any module; writing the batched products out saves its bookkeeping in every local step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from equipoise.core import Params
from equipoise.models.lora import LoraLinear

Forward = Callable[[Params, Tensor], Tensor]
"""Stacked parameters and inputs ``[K, B, ...]`` to outputs ``[K, B, ...]``."""

ELEMENTWISE = (
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.SiLU,
    nn.ELU,
    nn.LeakyReLU,
    nn.Softplus,
    nn.Identity,
)


def stacked_forward(module: nn.Module) -> Forward | None:
    """The batched forward pass, or ``None`` if a layer has no batched form here."""
    return _forward(module, "")


def transposed_params(module: nn.Module) -> frozenset[str]:
    """Parameters that a stack computes fastest with if their matrices lie transposed in memory: the tall, thin B."""
    adapted = ((name, layer) for name, layer in module.named_modules() if type(layer) is LoraLinear)
    return frozenset(f"{name}.{own}.B" for name, layer in adapted for own in layer.adapters)


def _forward(module: nn.Module, prefix: str) -> Forward | None:
    if type(module) is nn.Sequential:
        layers = [_forward(layer, f"{prefix}{name}.") for name, layer in module.named_children()]
        return (
            None
            if any(layer is None for layer in layers)
            else _chain([layer for layer in layers if layer])
        )
    if type(module) is nn.Linear:
        return _linear(module, f"{prefix}weight", f"{prefix}bias")
    if type(module) is LoraLinear:
        return _adapted(module, prefix)
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return lambda stack, x: x.flatten(2)
    if type(module) in ELEMENTWISE:
        layer: Callable[[Tensor], Tensor] = module
        return lambda stack, x: layer(x)
    return None


def _chain(layers: list[Forward]) -> Forward:
    def forward(stack: Params, x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(stack, x)
        return x

    return forward


def _linear(layer: nn.Linear, weight: str, bias: str) -> Forward:
    """Frozen parameters are not in the stack: one product with the layer's own serves all clients."""

    def forward(stack: Params, x: Tensor) -> Tensor:
        if weight not in stack:
            shared = F.linear(x, layer.weight, None if bias in stack else layer.bias)
            return shared + stack[bias].unsqueeze(1) if bias in stack else shared
        own, w = (
            stack[bias].unsqueeze(1) if bias in stack else layer.bias,
            stack[weight].transpose(1, 2),
        )
        return torch.bmm(x, w) if own is None else torch.baddbmm(own, x, w)

    return forward


def _adapted(layer: LoraLinear, prefix: str) -> Forward:
    """One pass of the frozen base for the whole stack, and two thin batched products for each adapter."""
    names = [f"{prefix}{name}.{part}" for name in layer.adapters for part in ("A", "B")]

    def forward(stack: Params, x: Tensor) -> Tensor:
        low = (stack[name] for name in names)
        out: Tensor = _Adapted.apply(x, layer.weight, layer.bias, layer.scale, *low)  # type: ignore[no-untyped-call]
        return out

    return forward


class _Adapted(torch.autograd.Function):
    """x W' + b + scale x A' B' of every client over one frozen W and b; adapters come as A, B, A, B, ….

    Plain autograd would make one more tensor of the size of x for each product, and add them up: here the base and its
    adapters write into one. The gradient of B is laid out transposed, which small products are fastest at.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, scale: float, *adapters: Tensor
    ) -> Tensor:
        out, inner = F.linear(x, weight, bias), []
        for down, up in zip(adapters[::2], adapters[1::2], strict=True):
            inner.append(torch.bmm(x, down.transpose(1, 2)).mul_(scale))
            out.baddbmm_(inner[-1], up.transpose(1, 2))
        ctx.scale, ctx.count = scale, len(adapters)
        ctx.save_for_backward(x, weight, *adapters, *inner)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *saved = ctx.saved_tensors
        adapters, inner = saved[: ctx.count], saved[ctx.count :]
        before = F.linear(g, weight.T) if ctx.needs_input_grad[0] else None
        gradients = []
        for down, up, mid in zip(adapters[::2], adapters[1::2], inner, strict=True):
            back = torch.bmm(g, up).mul_(ctx.scale)
            gradients += [
                torch.bmm(back.transpose(1, 2), x),
                torch.bmm(mid.transpose(1, 2), g).transpose(1, 2),
            ]
            before = None if before is None else before.baddbmm_(back, down)
        return before, None, None, None, *gradients


def activation_bytes(
    module: nn.Module, learned: Params, forward: Callable[[Params], Tensor]
) -> int:
    """Bytes that ``forward`` keeps for the gradient of what is ``learned``, beside the model's own tensors."""
    model = (*module.parameters(), *module.buffers(), *learned.values())
    own = {tensor.untyped_storage().data_ptr() for tensor in model}
    kept: dict[
        int, tuple[Tensor, int]
    ] = {}  # tensors stay referenced, so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = tensor, storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward({name: value.detach().requires_grad_() for name, value in learned.items()})
    return sum(size for _, size in kept.values())
