"""What the server has in hand when a round ends: replies in time, and with a clock those that were on their way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from equipoise.contract import ClientState, Scores
from equipoise.core.trees import Ints, Params
from equipoise.runtime.executors import CohortResults


@dataclass
class StartGroup:
    """Clients that started from one model: what they hold now, and at which places of the intake they are."""

    ids: Ints
    held: ClientState
    scores: Scores
    places: Tensor


@dataclass
class RoundReplies:
    """The replies of a round's end, by client, ascending."""

    ids: Ints
    replies: CohortResults
    """Of these clients; what the server makes of them refers to the model that it has now."""
    arrived: Tensor
    """Booleans: the others were computed, and count for nothing."""
    cohort: int
    """The number of clients by whose chunks sums are made."""
    parts: list[StartGroup]
    absent: dict[int, str] = field(default_factory=dict)
    joules: float | None = None
    seconds: Tensor | None = None
    """How long each took."""
    staleness: Tensor | None = None
    """How many models each is late, where any may be."""

    @classmethod
    def of(cls, ids: Ints, replies: CohortResults) -> RoundReplies:
        """Whoever replied, as it replied."""
        here = ids[replies.arrived.numpy()]
        in_time = torch.ones(len(here), dtype=torch.bool)
        return cls(here, replies, in_time, len(ids), _one_part(here, replies), dict(replies.absent))


def _one_part(ids: Ints, replies: CohortResults) -> list[StartGroup]:
    if replies.stack is None or replies.committed:
        return []
    return [StartGroup(ids, replies.stack.client_state, replies.stack.scores, torch.arange(len(ids)))]


@runtime_checkable
class AsyncExecutor(Protocol):
    """An executor whose clients may reply in a later round than the one that asked them, by a clock of their own."""

    @property
    def in_flight_ids(self) -> Ints:
        """Clients that were asked in earlier rounds and may still reply: they cannot be asked now."""

    def collect(self, round: int, params: Params) -> RoundReplies:
        """Wait for what ends the round; gives what the server, whose model is ``params``, then has in hand."""
