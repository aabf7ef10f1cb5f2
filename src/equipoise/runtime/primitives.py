"""What client code calls on its own data, once for one client and once for a stack.

Client code is mapped by ``torch.func.vmap``. Each primitive here brings its own rule for the map: when one client's
code reaches it, the whole stack is handed to the task's batched version. So methods are written for one client, call
local training as often as they like, and still run as a few batched kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

A = TypeVar("A")
R = TypeVar("R")


class _Mapped(torch.autograd.Function):
    @staticmethod
    def forward(call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        return call.run(call.one, list(tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: _Call, *tensors: Tensor) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        stacked = [
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip(tensors, in_dims[1:], strict=True)
        ]
        out = call.run(call.stack, stacked)
        return out, (0,) * len(out)


class _Call:
    def __init__(self, one: Callable[[Any], Any], stack: Callable[[Any], Any], spec: Any) -> None:
        self.one, self.stack, self.spec = one, stack, spec
        self.out_spec: Any = None

    def run(self, body: Callable[[Any], Any], tensors: list[Tensor]) -> tuple[Tensor, ...]:
        out, self.out_spec = pytree.tree_flatten(body(pytree.tree_unflatten(tensors, self.spec)))
        # An output that is also an input would confuse autograd's bookkeeping: hand out an alias.
        return tuple(value.view_as(value) for value in out)


def call(one: Callable[[A], R], stack: Callable[[A], R], arguments: A) -> R:
    """``one(arguments)``, or ``stack`` of all clients' arguments when the caller is being mapped over clients.

    Arguments and results are trees of tensors: dictionaries, tuples, messages.
    """
    tensors, spec = pytree.tree_flatten(arguments)
    record = _Call(one, stack, spec)
    out = _Mapped.apply(record, *tensors)  # type: ignore[no-untyped-call]
    result: R = pytree.tree_unflatten(list(out), record.out_spec)
    return result
