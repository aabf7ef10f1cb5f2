"""Batched forward passes: many models of one architecture at once.

``torch.func.vmap`` maps any module. For modules made of the layers below, explicit batched products
save vmap's overhead in every local step.
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
"""Maps stacked parameters ``[K, ...]`` and inputs ``[K, B, ...]`` to outputs ``[K, B, ...]``."""

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
    """Return the batched forward pass of a module, or ``None`` if a layer has no batched form."""
    return _forward(module, "")


def transposed_params(module: nn.Module) -> frozenset[str]:
    """Return the parameters that should be transposed in memory when clients are stacked.

    These are the tall, thin factors B of adapters, whose batched products are faster that way.
    """
    return frozenset(
        f"{name}.{adapter}.B"
        for name, layer in module.named_modules()
        if type(layer) is LoraLinear
        for adapter in layer.adapters
    )


def _forward(module: nn.Module, prefix: str) -> Forward | None:
    """Return the batched forward pass of one layer, whose parameters have names with ``prefix``."""
    if type(module) is nn.Sequential:
        layers: list[Forward] = []
        for name, child in module.named_children():
            batched = _forward(child, f"{prefix}{name}.")
            if batched is None:
                return None
            layers.append(batched)
        return _chain(layers)
    if type(module) is nn.Linear:
        return _linear(module, f"{prefix}weight", f"{prefix}bias")
    if type(module) is LoraLinear:
        return _lora_linear(module, prefix)
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return lambda stack, x: x.flatten(2)
    if type(module) in ELEMENTWISE:
        layer: Callable[[Tensor], Tensor] = module
        return lambda stack, x: layer(x)
    return None


def _chain(layers: list[Forward]) -> Forward:
    """Apply layers one after the other."""

    def forward(stack: Params, x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(stack, x)
        return x

    return forward


def _linear(layer: nn.Linear, weight: str, bias: str) -> Forward:
    """Apply a linear layer; frozen parameters are not in the stack and are the same for all."""

    def forward(stack: Params, x: Tensor) -> Tensor:
        client_bias = stack[bias].unsqueeze(1) if bias in stack else None
        if weight not in stack:
            if client_bias is None:
                return F.linear(x, layer.weight, layer.bias)
            return F.linear(x, layer.weight, None) + client_bias
        client_weight = stack[weight].transpose(1, 2)
        added = layer.bias if client_bias is None else client_bias
        if added is None:
            return torch.bmm(x, client_weight)
        return torch.baddbmm(added, x, client_weight)

    return forward


def _lora_linear(layer: LoraLinear, prefix: str) -> Forward:
    """Apply the frozen base once for the whole stack, and each adapter by two batched products."""
    names = [f"{prefix}{name}.{part}" for name in layer.adapters for part in ("A", "B")]

    def forward(stack: Params, x: Tensor) -> Tensor:
        factors = [stack[name] for name in names]
        out: Tensor = _LoraFunction.apply(  # type: ignore[no-untyped-call]
            x, layer.weight, layer.bias, layer.scale, *factors
        )
        return out

    return forward


class _LoraFunction(torch.autograd.Function):
    """Compute x W' + b + scale x A' B' for every client, with one frozen W and b.

    Plain autograd would allocate a tensor of the size of x for each product and add them up; here
    the base and its adapters write into one tensor. The gradient of B is transposed in memory,
    because small products are fastest that way.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, scale: float, *adapters: Tensor
    ) -> Tensor:
        """Return outputs ``[K, B, out]``; ``adapters`` are A, B, A, B, ..."""
        out = F.linear(x, weight, bias)
        inner = []
        for down, up in zip(adapters[::2], adapters[1::2], strict=True):
            inner.append(torch.bmm(x, down.transpose(1, 2)).mul_(scale))
            out.baddbmm_(inner[-1], up.transpose(1, 2))
        ctx.scale = scale
        ctx.count = len(adapters)
        ctx.save_for_backward(x, weight, *adapters, *inner)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x and of all adapters."""
        x, weight, *saved = ctx.saved_tensors
        adapters = saved[: ctx.count]
        inner = saved[ctx.count :]
        grad_x = F.linear(g, weight.T) if ctx.needs_input_grad[0] else None
        gradients = []
        for down, up, mid in zip(adapters[::2], adapters[1::2], inner, strict=True):
            back = torch.bmm(g, up).mul_(ctx.scale)
            gradients.append(torch.bmm(back.transpose(1, 2), x))
            gradients.append(torch.bmm(mid.transpose(1, 2), g).transpose(1, 2))
            if grad_x is not None:
                grad_x = grad_x.baddbmm_(back, down)
        return grad_x, None, None, None, *gradients


def activation_bytes(
    module: nn.Module, learned: Params, forward: Callable[[Params], Tensor]
) -> int:
    """Measure the memory that a forward pass saves for the backward pass.

    Args:
        module: The module.
        learned: Parameters that need a gradient.
        forward: The forward pass, as a function of these parameters.

    Returns:
        Bytes of saved activations, without the model's own tensors.
    """
    model = (*module.parameters(), *module.buffers(), *learned.values())
    model_storages = {tensor.untyped_storage().data_ptr() for tensor in model}
    # Saved tensors stay referenced, so that no address is used twice.
    saved: dict[int, tuple[Tensor, int]] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in model_storages:
            saved[storage.data_ptr()] = tensor, storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        forward({name: value.detach().requires_grad_() for name, value in learned.items()})
    return sum(size for _, size in saved.values())
