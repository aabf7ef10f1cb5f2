"""A probe: the client scores what it would hold after each choice, on its validation rows, before it trains.

Before training a score measures how well the parts fit; after it the differences are noise. A client probes when it is
asked to, and is then sent the whole model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import Client, State, Tree
from equipoise.control.learning import DTYPE
from equipoise.control.parts import BLOCKS, PARTS, TAKES

KEPT = 0.7  # of a smoothed score, each round
LOSS_PART, LOSS_MOST = 0.02, 3.0  # accuracy decides; the loss, bounded, breaks ties
FULL, NONE = PARTS.index("full"), PARTS.index("none")


def client_init() -> State:
    return {
        "scores": torch.zeros(len(PARTS), dtype=DTYPE),
        "acc": torch.zeros(len(PARTS), dtype=DTYPE),
        "loss": torch.zeros(len(PARTS), dtype=DTYPE),
        "round": torch.zeros((), dtype=torch.int64),
        "part": torch.zeros((), dtype=torch.int64),
    }


def look(c: Client, seen: State, asked: Tensor) -> State:
    """Accuracy, loss and smoothed score (lower is better) of every part, new where it was asked for."""
    if not c.anybody(asked):
        return seen
    merits = [c.task.merit(c.evaluate(candidate(c, takes))) for takes in TAKES]
    acc, loss = (torch.stack([merit[k].to(DTYPE) for merit in merits]) for k in (0, 1))
    score = 1.0 - acc + LOSS_PART * loss.clamp(max=LOSS_MOST)
    kept = torch.where(seen["round"] > 0, KEPT ** (c.round - seen["round"]).to(DTYPE), 0.0)
    now = torch.full_like(seen["round"], c.round)
    new = {"scores": kept * seen["scores"] + (1 - kept) * score, "acc": acc, "loss": loss, "round": now}
    return seen | {name: torch.where(asked, value, seen[name]) for name, value in new.items()}


def candidate(c: Client, takes: Tensor) -> Tree:
    """The model that the client would hold after taking these blocks."""
    return {
        name: torch.where(takes[column], c.down.params[name], c.local[name])
        for column, block in enumerate(BLOCKS)
        for name in c.task.blocks[block]
    }


def report(seen: State) -> Tensor:
    """Loss and accuracy of what the client had, and of what it installed instead: they come with the probe."""
    part = torch.nn.functional.one_hot(seen["part"], len(PARTS)).to(DTYPE)
    had = [seen[name][NONE] for name in ("loss", "acc")]
    took = [(part * seen[name]).sum() for name in ("loss", "acc")]
    return torch.stack([*had, *took])


def worth(scores: Tensor, trust: Tensor, lean: Tensor) -> Tensor:
    """The value of each part ``[..., parts]``: how much better than what one has, as far as that is trusted."""
    return lean - trust * (scores - scores[..., NONE, None])
