"""Nobody is left behind: everybody in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Pool, SelectionPolicy


@dataclass(frozen=True)
class Fair(SelectionPolicy):
    """Whoever has never replied first, then whoever waits longest.

    Turns are equal, and not replies: to have equal numbers of replies, everybody would have to wait for the slowest.
    """

    name: ClassVar[str] = "fair"

    def scores(self, pool: Pool) -> Tensor:
        return torch.where(pool.replies == 0, torch.inf, -pool.last.double())
