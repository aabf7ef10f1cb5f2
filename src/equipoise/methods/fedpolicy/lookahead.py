"""The policy ``lookahead``: where a client chooses, it trains from the best two parts and keeps what came out better.

A probe before training cannot see what a choice leads to: a part may lose before training and win after it. Here the
same client, on the same batches, takes one round from each of two parts, and the difference of their scores afterwards
takes the place of that before. It costs no byte, for whoever probes holds everything, and a second training.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equipoise.contract import Client, Method, State, Tree
from equipoise.learners.learning import DTYPE
from equipoise.methods.fedpolicy import probes
from equipoise.methods.fedpolicy.foresight import Learned
from equipoise.methods.fedpolicy.parts import Parts


class LookAhead(Learned):
    """As ``learned``; a choosing client looks one round ahead."""

    ahead: ClassVar[bool] = True


def client_init() -> State:
    return {"second": torch.zeros((), dtype=torch.int64)}


def runner_up(value: Tensor, best: Tensor) -> Tensor:
    """The part of the next best value."""
    return value.masked_fill(torch.arange(len(value)) == best, -torch.inf).argmax(-1)


def both(c: Client, below: Method, parts: Parts, trained: Tree, state: State) -> tuple[Tree, State]:
    """What was trained from the chosen part, or what comes of the runner-up where that scores better after training."""
    probe, asked = state["probe"], c.down.each["choose"]
    c.notes["gradients"] = c.notes.get("gradients", c.steps(c.train)) * (1 + asked.long())
    if not c.anybody(asked):
        return trained, state
    other = c.within("base")
    other.down = replace(c.down, sent=parts.sent(c.task, parts.taken(probe["second"])))
    other.start, other.state = below.install(other)
    rival, rival_base = below.update(other)
    ours, theirs = (_score(c, model) for model in (trained, rival))
    wins = asked & (theirs < ours)
    scores = _corrected(probe["scores"], probe["part"], probe["second"], ours - theirs)
    probe = {
        **probe,
        "scores": torch.where(asked, scores, probe["scores"]),
        "part": torch.where(wins, probe["second"], probe["part"]),
    }
    trained, base = pytree.tree_map(
        lambda new, old: torch.where(wins, new, old), (rival, rival_base), (trained, state["base"])
    )
    return trained, {**state, "probe": probe, "base": base}


def _score(c: Client, model: Tree) -> Tensor:
    acc, loss = (merit.to(DTYPE) for merit in c.task.merit(c.evaluate(model)))
    return probes.score(acc, loss)


def _corrected(scores: Tensor, first: Tensor, second: Tensor, apart: Tensor) -> Tensor:
    """Scores of two parts, around their own mean, as far apart as their trained models."""
    places = torch.arange(len(scores))
    one, two = places == first, places == second
    middle = (scores * (one | two)).sum() / 2
    return torch.where(one, middle + apart / 2, torch.where(two, middle - apart / 2, scores))
