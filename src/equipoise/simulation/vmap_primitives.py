"""Primitives that client code calls on its own data, for one client or for a stack of clients.

Client code is mapped over clients. Each primitive has its own rule for the map: when the code of
one client reaches it, the whole stack is handed to the batched version of the task. So methods are
written for one client, and still run as a few batched kernels.

There are two maps with the same bits: a fast one by private functions of torch, and
`torch.func.vmap` for versions of torch that are not known (see `utils/torch_internals.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from equipoise.utils import pytree, torch_internals

A = TypeVar("A")
R = TypeVar("R")
Axes = int | None | object
"""Of an argument: 0 if it is a stack, None if all clients share it, or a tree of these."""


class _Mapped(torch.autograd.Function):
    """A primitive under `torch.func.vmap`."""

    @staticmethod
    def forward(call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        return call.run(call.one, tensors)

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], call: _Call, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        stacked = tuple(
            tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip(tensors, in_dims[1:], strict=True)
        )
        out = call.run(call.stack, stacked)
        return out, (0,) * len(out)


class _Call:
    """One call of a primitive; remembers the structure of its arguments and of its result."""

    def __init__(
        self, one: Callable[[A], object], stack: Callable[[A], object], arguments: A
    ) -> None:
        self.one = one
        self.stack = stack
        self.arguments = arguments
        self.result: object = None

    def run(self, body: Callable[[A], object], tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.result = body(pytree.with_leaves(self.arguments, tensors))  # type: ignore[arg-type]
        # An output that is also an input would confuse autograd's bookkeeping: hand out an alias.
        return tuple(value.view_as(value) for value in pytree.leaves(self.result))


class _Map(threading.local):
    """The active map over clients in this thread: its vmap level and number of clients."""

    level: int | None = None
    clients = 0


_MAP = _Map()


def over_clients(
    body: Callable[..., R], axes: tuple[Axes, ...], arguments: tuple[object, ...], clients: int
) -> R:
    """Map a client's code over clients.

    Args:
        body: Code of one client.
        axes: For each argument 0, None or a tree of these.
        arguments: Trees of tensors.
        clients: Number of clients K.

    Returns:
        The results, with a leading axis `[K, ...]`.
    """
    if not torch_internals.has_vmap_levels():
        return _public_map(body, axes, arguments)
    level = torch_internals.enter_vmap(clients)
    before = (_MAP.level, _MAP.clients)
    _MAP.level = level
    _MAP.clients = clients
    try:
        batched = [
            _batched(argument, axis, level) for argument, axis in zip(arguments, axes, strict=True)
        ]
        return _stacks(body(*batched), level, clients)
    finally:
        _MAP.level = before[0]
        _MAP.clients = before[1]
        torch_internals.leave_vmap()


def _public_map(body: Callable[..., R], axes: tuple[Axes, ...], arguments: tuple[object, ...]) -> R:
    """Map by `torch.func.vmap` over flat tensors, because it does not know our messages."""
    tensors = pytree.leaves(arguments)
    in_dims = [
        dim
        for argument, axis in zip(arguments, axes, strict=True)
        for dim in _leaf_axes(argument, axis)
    ]
    results: list[R] = []

    def flat(*values: Tensor) -> tuple[Tensor, ...]:
        results.append(body(*pytree.with_leaves(arguments, values)))
        return tuple(pytree.leaves(results[0]))

    stacks = torch.func.vmap(flat, in_dims=tuple(in_dims))(*tensors)
    return pytree.with_leaves(results[0], stacks)


def _leaf_axes(tree: object, axis: Axes) -> list[int | None]:
    """Return the axis of each leaf."""
    if axis is None or isinstance(axis, int):
        return [axis] * len(pytree.leaves(tree))
    axes: list[int | None] = []
    pytree.map_leaves(lambda _, one: axes.append(one), tree, axis)
    return axes


def _batched(tree: Any, axis: Axes, level: int) -> Any:
    """Return stacks as the values of one client."""
    if axis is None:
        return tree
    if isinstance(axis, int):
        return pytree.map_leaves(lambda value: torch_internals.add_batch_dim(value, level), tree)
    return pytree.map_leaves(
        lambda value, one: value if one is None else torch_internals.add_batch_dim(value, level),
        tree,
        axis,
    )


def _stacks(tree: R, level: int, clients: int) -> R:
    """Return the values of one client as stacks."""
    stacks: R = pytree.map_leaves(
        lambda value: torch_internals.remove_batch_dim(value, level, clients), tree
    )
    return stacks


def call(one: Callable[[A], R], stack: Callable[[A], R], arguments: A) -> R:
    """Call `one(arguments)`, or `stack` on all clients' arguments inside a map over clients.

    Args:
        one: The primitive for one client.
        stack: The primitive for a stack of clients.
        arguments: Trees of tensors: dictionaries, tuples, messages.

    Returns:
        The result of one client.
    """
    level = _MAP.level
    # Another level means that the method maps or derives by itself.
    if level is not None and torch_internals.current_level() == level:
        stacked = _stacks(arguments, level, _MAP.clients)
        with torch_internals.outside_vmap():
            _MAP.level = None
            try:
                found = stack(stacked)
            finally:
                _MAP.level = level
        batched: R = _batched(found, 0, level)
        return batched
    record = _Call(one, stack, arguments)
    out = _Mapped.apply(record, *pytree.leaves(arguments))  # type: ignore[no-untyped-call]
    result: R = pytree.with_leaves(record.result, out)  # type: ignore[assignment]
    return result
