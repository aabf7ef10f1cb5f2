"""Trees as bytes between the processes of one run: lengths, a head in JSON, the tensors, aligned as torch does it."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.core.trees import State, map_leaves, to_dict

ALIGNED = 64
LENGTHS = 16  # bytes of two numbers: the length of the message, and of its head


def pack(tree: State, least: int = 0) -> Tensor:
    """Nested dictionaries of tensors, messages, and what JSON knows; filled up to at least so many bytes."""
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

    head = json.dumps(map_leaves(describe, {"tree": to_dict(tree)})).encode()
    place = _aligned(LENGTHS + len(head))
    buffer = torch.empty(max(least, place + size), dtype=torch.uint8)
    numbers = buffer.numpy()
    numbers[:LENGTHS].view(np.int64)[:] = place + size, len(head)
    numbers[LENGTHS : LENGTHS + len(head)] = np.frombuffer(head, np.uint8)
    for tensor in tensors:
        if tensor.nbytes:
            raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            numbers[place : place + len(raw)] = raw
            place += _aligned(len(raw))
    return buffer


def unpack(buffer: Tensor) -> State:
    """The inverse of :func:`pack`; tensors are views of the buffer."""
    data = buffer.numpy().data
    length = _lengths(data)[1]
    start = _aligned(LENGTHS + length)
    whole: dict[str, Tensor] = {}  # the buffer as numbers of each kind

    def restore(item: Any) -> Any:
        if isinstance(item, dict):
            return {name: restore(value) for name, value in item.items()}
        if len(item) == 1:
            return item[0]
        name, shape, offset = item
        if name not in whole:
            whole[name] = buffer.view(getattr(torch, name))
        numbers = whole[name]
        first = (start + offset) // numbers.itemsize
        return numbers[first : first + math.prod(shape)].view(shape)

    tree: State = restore(json.loads(bytes(data[LENGTHS : LENGTHS + length])))["tree"]
    return tree


def length_of(beginning: bytearray | memoryview) -> int:
    """Bytes of the message that begins so."""
    return _lengths(beginning)[0]


def _lengths(beginning: bytearray | memoryview) -> list[int]:
    numbers: list[int] = np.frombuffer(beginning, np.int64, 2).tolist()
    return numbers


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
