"""Nobody is left behind: whoever has replied least often is asked first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from equipoise.contract import Pool, Selection


@dataclass(frozen=True)
class Fair(Selection):
    """The fewest replies first; of equal ones, whoever waits longest."""

    name: ClassVar[str] = "fair"

    def scores(self, pool: Pool) -> Tensor:
        return -pool.replies.double() - pool.last / (1.0 + pool.round)
