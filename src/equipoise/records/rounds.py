"""The record of one round: one line of ``rounds.jsonl``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from equipoise.records.codec import Flat
from equipoise.records.scores import Evaluations, HasEvaluations


@dataclass(frozen=True)
class MeanMinMax:
    """Mean, minimum and maximum of a quantity over clients."""

    mean: float
    min: float
    max: float


@dataclass(frozen=True)
class Bytes:
    """Traffic of all clients: ``up`` to the server, ``down`` to the clients."""

    up: int
    down: int

    def __add__(self, other: Bytes) -> Bytes:
        """Add two amounts of traffic."""
        return Bytes(self.up + other.up, self.down + other.down)

    @property
    def total(self) -> int:
        """Sum of both directions."""
        return self.up + self.down


@dataclass(frozen=True)
class PrivacySpent:
    """Privacy spent so far; an epsilon is None if there is no bound.

    Attributes:
        epsilon: Against those who see the released models.
        epsilon_server: Against the server, which sees the uploads.
        delta: Delta of both.
        uploads: Uploads of the client that made most of them.
    """

    epsilon: float | None
    epsilon_server: float | None
    delta: float
    uploads: int


INFLUENCE_GUARD = "influence"
"""Name of the guard that lets clients count less; all others leave replies out."""


@dataclass(frozen=True)
class LostRequest:
    """A round that a server of remote clients asked, and of which it lost the result in a crash.

    Attributes:
        round: Number of the round.
        clients: Clients that were asked.
        num_summed: Clients in the secure sum that was about to be unmasked; 0 if there was none.
    """

    round: int
    clients: list[int]
    num_summed: int = 0


@dataclass(frozen=True, kw_only=True)
class RoundRecord(HasEvaluations):
    """One round. Entries that do not apply are None or empty, and absent in JSON.

    Scores of clients are means over all participants so far; an absent client counts with the model
    that it holds.
    """

    round: int
    clients: int
    """Number of clients that were selected."""
    seen: int
    """Number of clients that have replied in this round or an earlier one."""
    test: Flat[Evaluations | None] = None
    """Scores on test data; None in a round without evaluation."""
    val: Evaluations | None = None
    """Scores on validation data."""
    train: dict[str, MeanMinMax]
    """Epochs and learning rates that clients used."""
    ids: list[int] | None = None
    """Ids of the clients that replied, if not all did; the lists below have this order."""
    steps: int | None = None
    """Gradient steps of all clients together, if reported."""
    decisions: dict[str, list[float]] | None = None
    """Epochs and learning rates of each client, if they differ."""
    bytes: Bytes
    clock: float | None = None
    """Simulated seconds since the start of the run, at the end of this round."""
    energy: float | None = None
    """Joules of the clients whose work ended in this round."""
    staleness: MeanMinMax | None = None
    """Age of the replies in server models, if replies may be stale."""
    dropped: list[int]
    """Clients whose reply was not used: not finite, or see ``rejected``."""
    rejected: dict[int, str] = field(default_factory=dict)
    """Reasons for clients of ``dropped`` that sent invalid reports or made the server fail."""
    guards: dict[str, int] = field(default_factory=dict)
    """Number of clients that each guard acted on: those that left replies out (``not finite``,
    ``range``, ``rate or epochs``, ``norm``, ``fault``), and the one that lets clients count less
    than their weight (``influence``)."""
    shrunk: dict[int, float] = field(default_factory=dict)
    """The share of its influence that the guard left to a client, for every client that it acted
    on; of a long list the smallest shares, ``guards`` has the number of all."""
    absent: dict[int, str] = field(default_factory=dict)
    """Reasons of the clients that did not reply."""
    skipped: str | None = None
    """Why the round changed nothing."""
    privacy: PrivacySpent | None = None
    logged: dict[str, Any] = field(default_factory=dict)
    """Values that the method logged: usually a number, or one per client."""
    stop: str | None = None
    """Why the run ends here, before its last round."""
    seconds: float

    @property
    def has_client_scores(self) -> bool:
        """Whether clients were evaluated."""
        return bool(self.trained)
