"""Trees of stacks ``[K, ...]`` and trees of one client: how to come from one to the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Tree = dict[str, Tensor]
"""A model: parameter names to tensors. One client has plain shapes, a stack has one leading axis more."""

State = dict[str, Any]
"""What a client or the server keeps between rounds: nested dictionaries of tensors."""


def row(tree: State, k: int | slice) -> State:
    """One client's tree, or that of a range of clients."""
    result: State = pytree.tree_map(lambda value: value[k], tree)
    return result


def moved(tree: State, device: torch.device) -> State:
    """The same numbers, where they are to be computed with; no copy where they are there."""
    return {name: moved(v, device) if isinstance(v, dict) else v.to(device) for name, v in tree.items()}


def stack(trees: list[State]) -> State:
    """One tree of stacks from a list of trees."""
    result: State = pytree.tree_map(lambda *values: torch.stack(values), *trees)
    return result


def tree_bytes(tree: State | Tree, stacked: bool = False) -> int:
    """Bytes of one client's tree; of a stack, those of one row."""
    return sum(
        value.element_size() * (value[0].numel() if stacked else value.numel()) for value in pytree.tree_leaves(tree)
    )
