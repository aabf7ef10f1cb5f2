"""Scores: the four named evaluations of a round, and the metrics of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NAMED = ("global", "received", "trained", "personal")


class Scores(Mapping[str, float | None]):
    """Metrics of one evaluation, the main metric first: ``scores.acc`` or ``scores["acc"]``.

    Metrics of clients are means over clients, with ``std`` and ``p10`` (the first decile) of the
    main metric. A metric without a finite value is None. A name that Python reserves has an
    underscore: ``scores.return_``. If nothing was evaluated (a server without a whole model, a
    round between evaluations) the scores are empty, hence false, and any attribute is None.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, float | None] | None = None) -> None:
        """Store scores; values that are not finite become None."""
        self._values = {
            name: None if value is None or not math.isfinite(value) else value
            for name, value in (values or {}).items()
        }

    def __getattr__(self, name: str) -> Any:
        """Return a metric, a float or None; untyped, so that scores can be compared directly."""
        if name.startswith("_"):
            raise AttributeError(name)
        if self._values and name.rstrip("_") not in self._values:
            raise AttributeError(f"there is no score '{name}': there are {', '.join(self._values)}")
        return self._values.get(name.rstrip("_"))

    def __getitem__(self, name: str) -> float | None:
        """Return the score of a metric."""
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the metrics."""
        return iter(self._values)

    def __len__(self) -> int:
        """Return the number of metrics."""
        return len(self._values)

    def __dir__(self) -> list[str]:
        """Return the attributes, with the names of the metrics."""
        return [*super().__dir__(), *self._values]

    def __repr__(self) -> str:
        """Return the scores as text."""
        return f"Scores({self._values})"

    def __reduce__(self) -> tuple[type[Scores], tuple[dict[str, float | None]]]:
        """Return how to pickle the scores."""
        return Scores, (self._values,)

    def __hash__(self) -> int:
        """Return a hash of names and values."""
        return hash(tuple(self._values.items()))

    @property
    def metric(self) -> str | None:
        """Name of the main metric."""
        return next(iter(self._values), None)


NOTHING = Scores()


@dataclass(frozen=True, kw_only=True)
class Evaluations:
    """Scores of the server's model and of the clients' models: received, trained, personal."""

    global_: Scores
    """Empty if the server holds no whole model."""
    received: Scores = NOTHING
    trained: Scores = NOTHING
    personal: Scores = NOTHING

    def evaluation(self, name: str) -> Scores:
        """Return one evaluation by its name in JSON, one of :data:`NAMED`."""
        scores: Scores = getattr(self, "global_" if name == "global" else name)
        return scores


class HasEvaluations:
    """Test scores as attributes, for rounds and runs."""

    test: Evaluations | None

    def evaluation(self, name: str) -> Scores:
        """Return one evaluation by its name in JSON, one of :data:`NAMED`."""
        return self.test.evaluation(name) if self.test else NOTHING

    @property
    def global_(self) -> Scores:
        """The server's model on the server's test set."""
        return self.evaluation("global")

    @property
    def received(self) -> Scores:
        """The models that clients received, on their own test sets."""
        return self.evaluation("received")

    @property
    def trained(self) -> Scores:
        """The models that clients trained, on their own test sets."""
        return self.evaluation("trained")

    @property
    def personal(self) -> Scores:
        """The models that clients use, on their own test sets."""
        return self.evaluation("personal")


@dataclass(frozen=True)
class ClientFinalScores:
    """Scores of one client's model after the last round."""

    scores: Mapping[str, float]
    """All metrics of the task on the client's test rows."""
    columns: Mapping[str, float]
    """Further columns of clients.csv: confidence interval and baselines of the metric."""
