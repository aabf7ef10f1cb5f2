"""Parts of the aggregate that a client may be given, and block weights that know who installed what."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import Range, Task, Tree
from equipoise.core.trees import tree_bytes

BLOCKS = ("backbone", "head")
PARTS = ("full", "backbone", "head", "none")
TAKES = torch.tensor([[True, True], [True, False], [False, True], [False, False]])
"""``[parts, blocks]``: which blocks a part consists of."""
CHOICE = Range(0.0, len(PARTS) - 1.0)  # the number of a part, as a client reports it
FRESH_ENOUGH = 0.25  # mean freshness from which a block moves all the way to its new mean


def sent_blocks(takes: Tensor) -> dict[str, Tensor]:
    """``Down.sent`` from booleans ``[K, blocks]`` (or ``[blocks]`` for one client)."""
    return {block: takes[..., column] for column, block in enumerate(BLOCKS)}


def takes(part: Tensor) -> Tensor:
    """``TAKES[part]`` for one client's number: indexing by it cannot be mapped over clients."""
    return torch.stack([part < 2, part % 2 == 0])


def cost(task: Task, params: Tree) -> Tensor:
    """``[parts]``: bytes of each part, as a share of the whole model's."""
    sizes = torch.tensor([tree_bytes({name: params[name] for name in task.blocks[block]}) for block in BLOCKS])
    return TAKES.double() @ sizes.double() / sizes.sum()


def freshness(age: Tensor, rho: float) -> Tensor:
    """rho^age: what an upload is worth whose client last installed this block ``age`` rounds ago."""
    return rho ** age.double()


def block_weights(task: Task, stack: Tree, weights: Tensor | Tree, fresh: Tensor) -> Tree:
    """Weights times freshness ``[K, blocks]``, summing to one over K again; by name, for the weighted mean."""
    fresh = fresh / fresh.max(0).values  # all may be old: then the youngest count
    by_name: Tree = {}
    for column, block in enumerate(BLOCKS):
        for name in task.blocks[block]:
            like = [-1, *[1] * (stack[name].dim() - 1)]
            given = weights[name] if isinstance(weights, dict) else weights.reshape(like)
            product = given * fresh[:, column].reshape(like)
            by_name[name] = (product / product.sum(0)).to(stack[name].dtype)
    return by_name


def keep_stale(task: Task, before: Tree, after: Tree, fresh: Tensor) -> Tree:
    """A block that hardly anybody installed lately hardly moves: its uploads tell of personal models only."""
    step = (fresh.mean(0) / FRESH_ENOUGH).clamp(max=1.0).tolist()
    moved = dict(after)
    for column, block in enumerate(BLOCKS):
        if step[column] < 1.0:
            moved |= {name: torch.lerp(before[name], after[name], step[column]) for name in task.blocks[block]}
    return moved
