"""What the server has in hand when a round ends: replies in time, and with a clock those that were on their way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from equipoise.contract import Held, Scores
from equipoise.core.trees import Ints, Tree
from equipoise.runtime.executors import Replies


@dataclass
class Part:
    """Clients that started from one model: what they hold now, and at which places of the intake they are."""

    ids: Ints
    held: Held
    scores: Scores
    places: Tensor


@dataclass
class Intake:
    """The replies of a round's end, by client, ascending."""

    ids: Ints
    replies: Replies
    """Of these clients; what the server makes of them refers to the model that it has now."""
    in_time: Tensor
    """Booleans: the others were computed, and count for nothing."""
    cohort: int
    """The number of clients by whose chunks sums are made."""
    parts: list[Part]
    absent: dict[int, str] = field(default_factory=dict)
    joules: float | None = None
    seconds: Tensor | None = None
    """How long each took."""
    staleness: Tensor | None = None
    """How many models each is late, where any may be."""

    @classmethod
    def of(cls, ids: Ints, replies: Replies) -> Intake:
        """Whoever replied, as it replied."""
        here = ids[replies.rows.numpy()]
        in_time = torch.ones(len(here), dtype=torch.bool)
        return cls(here, replies, in_time, len(ids), _one_part(here, replies), dict(replies.absent))


def _one_part(ids: Ints, replies: Replies) -> list[Part]:
    if replies.stack is None or replies.kept:
        return []
    return [Part(ids, replies.stack.held, replies.stack.scores, torch.arange(len(ids)))]


@runtime_checkable
class Later(Protocol):
    """An executor whose clients may reply in a later round than the one that asked them, by a clock of their own."""

    @property
    def away(self) -> Ints:
        """Clients that were asked in earlier rounds and may still reply: they cannot be asked now."""

    def land(self, round: int, params: Tree) -> Intake:
        """Wait for what ends the round; gives what the server, whose model is ``params``, then has in hand."""
