"""A probe: the client scores what it would hold after each choice, on its validation rows, before it trains.

Before training a score measures how well the parts fit; after it the differences are noise. Whatever was sent can be
probed, so a probe costs bytes only for blocks that would not have been sent otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import Client, State, Tree
from equipoise.control.learning import DTYPE
from equipoise.control.parts import BLOCKS, PARTS, TAKES

KEPT = 0.7  # of a smoothed score, each round
DOUBT = 15.0  # validation rows at which a score counts half
LOSS_PART, LOSS_MOST = 0.1, 3.0  # accuracy decides; the loss, bounded, breaks ties


def client_init() -> State:
    return {
        "scores": torch.zeros(len(PARTS), dtype=DTYPE),
        "scored": torch.zeros(len(PARTS), dtype=torch.int64),
        "acc": torch.zeros(len(PARTS), dtype=DTYPE),
        "part": torch.zeros((), dtype=torch.int64),
    }


def look(c: Client, seen: State) -> State:
    """Smoothed scores of all parts that what was sent allows to try; lower is better."""
    sent = torch.stack([torch.as_tensor(c.down.sent[block]) for block in BLOCKS])
    scores, scored, accs = [], [], []
    for number, takes in enumerate(TAKES):
        tried, old, when = (~takes | sent).all(), seen["scores"][number], seen["scored"][number]
        if not c.anybody(tried):
            scores.append(old)
            scored.append(when)
            accs.append(seen["acc"][number])
            continue
        result = c.evaluate(candidate(c, takes & sent))
        acc, loss = (value.to(DTYPE) for value in c.task.merit(result))
        new = 1.0 - acc + LOSS_PART * loss.clamp(max=LOSS_MOST)
        kept = torch.where(when > 0, KEPT ** (c.round - when).to(DTYPE), torch.zeros_like(old))
        scores.append(torch.where(tried, kept * old + (1 - kept) * new, old))
        scored.append(torch.where(tried, torch.full_like(when, c.round), when))
        accs.append(torch.where(tried, acc, seen["acc"][number]))
    return {
        "scores": torch.stack(scores),
        "scored": torch.stack(scored),
        "acc": torch.stack(accs),
        "part": seen["part"],
    }


def candidate(c: Client, takes: Tensor) -> Tree:
    """The model that the client would hold after taking these blocks."""
    return {
        name: torch.where(takes[column], c.down.params[name], c.local[name])
        for column, block in enumerate(BLOCKS)
        for name in c.task.blocks[block]
    }


def worth(scores: Tensor, rows: Tensor, bonus: float) -> Tensor:
    """The value of each part ``[..., parts]``: few validation rows say little, and sharing is worth a bonus a block."""
    trust = rows.to(DTYPE) / (rows.to(DTYPE) + DOUBT)
    return bonus * TAKES.sum(1).to(DTYPE) - trust[..., None] * scores
