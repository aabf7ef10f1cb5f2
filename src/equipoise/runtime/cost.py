"""Bytes that really travel."""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import Blocks, ServerMessage
from equipoise.core.trees import tree_bytes


def down_bytes(message: ServerMessage, blocks: Blocks, clients: int) -> Tensor:
    """Per client: the blocks sent, what the method broadcasts, and proposals if there are any."""
    common = tree_bytes(message.broadcast) + tree_bytes(message.per_client, stacked=True)
    if message.hparams is not None:
        common += tree_bytes(message.hparams, stacked=True)
    total = torch.full((clients,), common, dtype=torch.int64)
    for block, names in blocks.items():
        size = tree_bytes({name: message.params[name] for name in names})
        total += size * torch.as_tensor(message.sent_blocks[block]).long()
    return total
