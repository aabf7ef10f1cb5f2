"""Bytes that really travel."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import Blocks, Down
from equipoise.core.trees import tree_bytes


def down_bytes(down: Down, blocks: Blocks, clients: int) -> Tensor:
    """Per client: the blocks sent, what the method broadcasts, and proposals if there are any."""
    common = tree_bytes(down.extra) + tree_bytes(down.each, stacked=True)
    if down.train is not None:
        common += tree_bytes(down.train, stacked=True)
    total = torch.full((clients,), common, dtype=torch.int64)
    for block, names in blocks.items():
        size = tree_bytes({name: down.params[name] for name in names})
        total += size * torch.as_tensor(down.sent[block]).long()
    return total
