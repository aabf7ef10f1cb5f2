"""Scores: the four named evaluations of a round, and the metrics of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
    """Further columns of the table of clients: the headline's interval, and the metric of whoever is to beat."""
