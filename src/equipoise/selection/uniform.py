"""Everybody has the same chance: FedAvg's own cohorts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Pool, SelectionPolicy, State
from equipoise.core import random


@dataclass(frozen=True)
class Uniform(SelectionPolicy):
    """Drawn by the seed alone."""

    name: ClassVar[str] = "uniform"
    is_stateful: ClassVar[bool] = False

    def choose(self, pool: Pool, state: State) -> tuple[Tensor, State]:
        if pool.count >= len(pool.ids):
            return pool.ids, state
        return pool.ids[torch.from_numpy(random.drawn(pool.seed, pool.round, len(pool.ids), pool.count))], state
