"""Trees as bytes between the processes of one run: a head in JSON, then the tensors, aligned as torch does it."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from equipoise.core.trees import State, map_leaves, plain

ALIGNED = 64


def pack(tree: State) -> Tensor:
    """Nested dictionaries of tensors, messages, and what JSON knows."""
    tensors: list[Tensor] = []
    size = 0

    def describe(leaf: Any) -> Any:
        nonlocal size
        if not isinstance(leaf, Tensor):
            return [leaf]
        tensors.append(leaf)
        found = [str(leaf.dtype).removeprefix("torch."), list(leaf.shape), size]
        size += _aligned(leaf.nbytes)
        return found

    head = json.dumps(map_leaves(describe, {"tree": plain(tree)})).encode()
    start = _aligned(8 + len(head))
    buffer = torch.zeros(start + size, dtype=torch.uint8)
    buffer[:8].view(torch.int64)[0] = len(head)
    buffer[8 : 8 + len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    place = start
    for tensor in tensors:
        if tensor.nbytes:
            raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            buffer[place : place + tensor.nbytes] = raw
        place += _aligned(tensor.nbytes)
    return buffer


def unpack(buffer: Tensor) -> State:
    """The inverse of :func:`pack`; tensors are views of the buffer."""
    length = int(buffer[:8].view(torch.int64)[0])
    start = _aligned(8 + length)

    def restore(item: Any) -> Any:
        if isinstance(item, dict):
            return {name: restore(value) for name, value in item.items()}
        if len(item) == 1:
            return item[0]
        name, shape, offset = item
        dtype: torch.dtype = getattr(torch, name)
        place, size = start + offset, dtype.itemsize * int(torch.Size(shape).numel())
        return buffer[place : place + size].view(dtype).view(shape)

    tree: State = restore(json.loads(bytes(buffer[8 : 8 + length].numpy().data)))["tree"]
    return tree


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
