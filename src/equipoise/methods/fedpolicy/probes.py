"""A probe: the client scores what it would hold after each choice, on its validation rows, before it trains.

Before training a score measures how well the parts fit; after it the differences are noise. A client probes when it is
asked to, and is then sent the whole model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.contract import Client, ValueRange, State
from equipoise.learners.learning import DTYPE
from equipoise.methods.fedpolicy import record
from equipoise.methods.fedpolicy.parts import Parts

KEPT = 0.7  # of a smoothed score, each round
LOSS_PART, LOSS_MOST = 0.02, 3.0  # accuracy decides; the loss, bounded, breaks ties
SCORE = ValueRange(0.0, 1.0 + LOSS_PART * LOSS_MOST)  # of a part, as a client reports it


def client_init(parts: Parts) -> State:
    return {
        "scores": torch.zeros(len(parts), dtype=DTYPE),
        "acc": torch.zeros(len(parts), dtype=DTYPE),
        "loss": torch.zeros(len(parts), dtype=DTYPE),
        "entropy": torch.zeros(1, dtype=DTYPE),
        "round": torch.zeros((), dtype=torch.int64),
        "part": torch.zeros((), dtype=torch.int64),
    }


def score(acc: Tensor, loss: Tensor) -> Tensor:
    """Lower is better."""
    return 1.0 - acc + LOSS_PART * loss.clamp(max=LOSS_MOST)


def look(client: Client, parts: Parts, seen: State, asked: Tensor) -> State:
    """Accuracy, loss and smoothed score (lower is better) of every part, new where it was asked for."""
    if not client.any_client(asked):
        return seen
    acc, loss = (merit.to(DTYPE) for merit in _merits(client, parts))
    kept = torch.where(seen["round"] > 0, KEPT ** (client.round - seen["round"]).to(DTYPE), 0.0)
    now = torch.full_like(seen["round"], client.round)
    smooth = kept * seen["scores"] + (1 - kept) * score(acc, loss)
    new = {"scores": smooth, "acc": acc, "loss": loss, "entropy": record.entropy(client), "round": now}
    return seen | {name: torch.where(asked, value, seen[name]) for name, value in new.items()}


def _merits(client: Client, parts: Parts) -> tuple[Tensor, Tensor]:
    """Accuracy and loss ``[parts]`` of what the client would hold; the last column's two variants share their body."""
    *columns, last = parts.params(client.task)
    heads = {name: torch.stack([client.message.params[name], client.local_params[name]]) for name in last}
    bodies = list(dict.fromkeys(tuple(row[:-1]) for row in parts.takes.tolist()))
    scores = []
    for taken in bodies:
        sent = {name for names, take in zip(columns, taken, strict=True) if take for name in names}
        model = {name: client.message.params[name] if name in sent else own for name, own in client.local_params.items()}
        scores.append(client.task.utility_and_loss(client.evaluate_heads(model, heads)))
    order = [2 * bodies.index(tuple(row[:-1])) + (not row[-1]) for row in parts.takes.tolist()]
    acc, loss = (torch.cat([merit[k] for merit in scores])[order] for k in (0, 1))
    return acc, loss


def report(seen: State) -> Tensor:
    """As :func:`record.report`: loss and accuracy of what the client had, and of what it installed instead."""
    part = torch.nn.functional.one_hot(seen["part"], len(seen["scores"])).to(DTYPE)
    had = [seen[name][-1] for name in ("loss", "acc")]
    took = [(part * seen[name]).sum() for name in ("loss", "acc")]
    return torch.cat([torch.stack([*had, *took]), seen["entropy"]])


def worth(scores: Tensor, trust: Tensor, lean: Tensor) -> Tensor:
    """The value of each part ``[..., parts]``: how much better than what one has, as far as that is trusted."""
    return lean - trust * (scores - scores[..., -1:])
