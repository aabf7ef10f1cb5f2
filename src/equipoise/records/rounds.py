"""The record of one round: one line of ``rounds.jsonl``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from equipoise.records.codec import Flat
from equipoise.records.scores import Evaluated, Evaluations


@dataclass(frozen=True)
class MeanMinMax:
    """A quantity over clients."""

    mean: float
    min: float
    max: float


@dataclass(frozen=True)
class Bytes:
    """Traffic of all clients together, as the server sees it: ``down`` to the clients, ``up`` from them."""

    up: int
    down: int

    def __add__(self, other: Bytes) -> Bytes:
        return Bytes(self.up + other.up, self.down + other.down)

    @property
    def both(self) -> int:
        return self.up + self.down


@dataclass(frozen=True)
class PrivacySpent:
    """Privacy spent so far: ``epsilon`` of the released models, ``epsilon_server`` of the uploads; ``None``: no bound.

    ``uploads``: of the client that made most of them.
    """

    epsilon: float | None
    epsilon_server: float | None
    delta: float
    uploads: int


@dataclass(frozen=True, kw_only=True)
class RoundRecord(Evaluated):
    """What happened in a round. Entries that do not apply are ``None`` or empty, and absent in JSON.

    Clients' scores are means over all clients seen so far: one that was absent counts with the model it holds.
    """

    round: int
    clients: int
    """Clients that were asked."""
    seen: int
    """Clients that have replied in this round or an earlier one."""
    test: Flat[Evaluations | None] = None
    """Scores on test data; ``None`` in a round without evaluation."""
    val: Evaluations | None = None
    """Scores on validation data."""
    train: dict[str, MeanMinMax]
    """Epochs and rates as taken."""
    ids: list[int] | None = None
    """Who replied, where that is not everybody; lists below are in this order."""
    steps: int | None = None
    """Gradient steps of all clients together, where they tell."""
    decisions: dict[str, list[float]] | None = None
    """Epochs and rates of each client, where they differ."""
    bytes: Bytes
    clock: float | None = None
    """Simulated seconds since the start of the run, at the end of this round."""
    energy: float | None = None
    """Joules of the clients whose round ended or was ended in this one."""
    staleness: MeanMinMax | None = None
    """How many models old the replies were, where any may be late."""
    dropped: list[int]
    """Clients whose reply was of no use: its update, state or personal model was not finite, or see ``left_out``."""
    rejected: dict[int, str] = field(default_factory=dict)
    """Clients of ``dropped`` that reported what they must not, or made the server fail: why."""
    absent: dict[int, str] = field(default_factory=dict)
    """Clients that did not reply, and why."""
    skipped: str | None = None
    """Why the round changed nothing."""
    privacy: PrivacySpent | None = None
    logged: dict[str, Any] = field(default_factory=dict)
    """What the method noted: anything that JSON knows, usually a number or one per client (of many, their spread)."""
    stop: str | None = None
    """Why the run ends here, before its last round."""
    seconds: float

    @property
    def evaluated(self) -> bool:
        """Whether clients were scored."""
        return bool(self.trained)
