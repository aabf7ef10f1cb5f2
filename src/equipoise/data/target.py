"""What is predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["classification", "regression", "survival", "next-token"]
KINDS: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != "next-token")
"""Those that a column of a table can be."""


@dataclass(frozen=True)
class Target:
    """How the ``y`` of every row is to be read.

    Classification: int64 ``[n]``, places in ``classes``. Regression: float32 ``[n]``, as measured. Survival: float32
    ``[n, 2]``, the time and whether the event was seen then (1) or the row was censored (0). Next-token: the texts are
    their own targets, and float32 ``[n]`` is the loss of who takes any token for the next one.
    """

    kind: Kind = "classification"
    name: str = ""
    """What people call it: the column, or the rule that makes two classes of it."""
    classes: tuple[str, ...] = ()
    event: str = ""
    """The column that says whether the event was seen."""
    mean: float = 0.0
    """Of a regression's training rows, in all clients together; ``scale`` is their standard deviation."""
    scale: float = 1.0

    @property
    def outputs(self) -> int:
        """Numbers that a model gives for one row."""
        return len(self.classes) if self.kind == "classification" else 2 if self.kind == "next-token" else 1


def numbered(classes: int) -> Target:
    """Classes that have no names."""
    return Target(classes=tuple(map(str, range(classes))))
