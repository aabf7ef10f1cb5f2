"""Scores: the four named evaluations of a round, and the metrics of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from equipoise.records.codec import Flat

NAMED = ("global", "received", "trained", "personal")


class Scores(Mapping[str, float | None]):
    """The metrics of one evaluation, the task's headline first: ``scores.acc`` or ``scores["acc"]``.

    Of clients' models they are means over clients, with ``std`` and ``p10`` (the decile) of the headline beside them.
    A metric without a finite value is ``None``. One whose name Python reserves has an underscore: ``scores.return_``.
    Where nothing was evaluated (a server without a whole model, a round between evaluations) there are no metrics: the
    scores are empty, hence false, and any attribute is ``None``.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, float | None] | None = None) -> None:
        self._values = {
            name: None if value is None or not math.isfinite(value) else value
            for name, value in (values or {}).items()
        }

    def __getattr__(self, name: str) -> Any:
        """A ``float`` or ``None``; untyped, so that code may compare scores without asking first."""
        if name.startswith("_"):
            raise AttributeError(name)
        if self._values and name.rstrip("_") not in self._values:
            raise AttributeError(f"there is no score '{name}': there are {', '.join(self._values)}")
        return self._values.get(name.rstrip("_"))

    def __getitem__(self, name: str) -> float | None:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]

    def __repr__(self) -> str:
        return f"Scores({self._values})"

    def __reduce__(self) -> tuple[type[Scores], tuple[dict[str, float | None]]]:
        return Scores, (self._values,)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    @property
    def headline(self) -> str | None:
        """The name of the first metric, which tables show."""
        return next(iter(self._values), None)


NOTHING = Scores()


@dataclass(frozen=True, kw_only=True)
class Evaluations:
    """What is scored: the server's model, and the clients' models as received, as trained and as they use them."""

    global_: Scores
    """Empty where the server holds no whole model."""
    received: Scores = NOTHING
    trained: Scores = NOTHING
    personal: Scores = NOTHING

    def named(self, name: str) -> Scores:
        """By its name in JSON, one of :data:`NAMED`."""
        found: Scores = getattr(self, "global_" if name == "global" else name)
        return found


class Evaluated:
    """What a round and a run have in common: test scores, directly as attributes."""

    test: Evaluations | None

    def named(self, name: str) -> Scores:
        """By its name in JSON, one of :data:`NAMED`."""
        return self.test.named(name) if self.test else NOTHING

    @property
    def global_(self) -> Scores:
        """The server's model on the server's test set."""
        return self.named("global")

    @property
    def received(self) -> Scores:
        """The models that clients received, on their own test sets."""
        return self.named("received")

    @property
    def trained(self) -> Scores:
        """The models that clients trained, on their own test sets."""
        return self.named("trained")

    @property
    def personal(self) -> Scores:
        """The models that clients use, on their own test sets."""
        return self.named("personal")


@dataclass(frozen=True)
class ClientFinalScores:
    """What is known of one client's own model after the last round."""

    scores: Mapping[str, float]
    """All that the task knows, on the client's test rows."""
    beside: Mapping[str, float]
    """Further columns of the table of clients: the headline's interval, and the headline of whoever is to beat."""


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
