"""Trees of stacks ``[K, ...]`` and trees of one client: how to come from one to the other."""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree

from equipoise.contract import State


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
