"""A probe: the client scores what it would hold after each choice, on its validation rows, before it trains.

Before training a score measures how well the parts fit; after it the differences are noise. A client probes when it is
asked to, and is then sent the whole model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import Client, Range, State
from equipoise.learners.learning import DTYPE
from equipoise.methods.fedpolicy import record
from equipoise.methods.fedpolicy.parts import PARTS

KEPT = 0.7  # of a smoothed score, each round
LOSS_PART, LOSS_MOST = 0.02, 3.0  # accuracy decides; the loss, bounded, breaks ties
SCORE = Range(0.0, 1.0 + LOSS_PART * LOSS_MOST)  # of a part, as a client reports it
NONE = PARTS.index("none")


def client_init() -> State:
    return {
        "scores": torch.zeros(len(PARTS), dtype=DTYPE),
        "acc": torch.zeros(len(PARTS), dtype=DTYPE),
        "loss": torch.zeros(len(PARTS), dtype=DTYPE),
        "entropy": torch.zeros(1, dtype=DTYPE),
        "round": torch.zeros((), dtype=torch.int64),
        "part": torch.zeros((), dtype=torch.int64),
    }


def look(c: Client, seen: State, asked: Tensor) -> State:
    """Accuracy, loss and smoothed score (lower is better) of every part, new where it was asked for."""
    if not c.anybody(asked):
        return seen
    heads = {name: torch.stack([c.down.params[name], c.local[name]]) for name in c.task.blocks["head"]}
    merits = [c.task.merit(c.evaluate_heads(model, heads)) for model in (c.down.params, c.local)]
    acc, loss = (torch.cat([merit[k].to(DTYPE) for merit in merits]) for k in (0, 1))
    score = 1.0 - acc + LOSS_PART * loss.clamp(max=LOSS_MOST)
    kept = torch.where(seen["round"] > 0, KEPT ** (c.round - seen["round"]).to(DTYPE), 0.0)
    now = torch.full_like(seen["round"], c.round)
    smooth = kept * seen["scores"] + (1 - kept) * score
    new = {"scores": smooth, "acc": acc, "loss": loss, "entropy": record.entropy(c), "round": now}
    return seen | {name: torch.where(asked, value, seen[name]) for name, value in new.items()}


def report(seen: State) -> Tensor:
    """As :func:`record.report`: loss and accuracy of what the client had, and of what it installed instead."""
    part = torch.nn.functional.one_hot(seen["part"], len(PARTS)).to(DTYPE)
    had = [seen[name][NONE] for name in ("loss", "acc")]
    took = [(part * seen[name]).sum() for name in ("loss", "acc")]
    return torch.cat([torch.stack([*had, *took]), seen["entropy"]])


def worth(scores: Tensor, trust: Tensor, lean: Tensor) -> Tensor:
    """The value of each part ``[..., parts]``: how much better than what one has, as far as that is trusted."""
    return lean - trust * (scores - scores[..., NONE, None])
