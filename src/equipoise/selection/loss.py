"""Power of choice: of candidates drawn by size, those with the largest loss (Cho, Wang and Joshi, 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Pool, SelectionPolicy, State, option
from equipoise.contract.selection import top_scores
from equipoise.selection.size import Size


@dataclass(frozen=True)
class Loss(SelectionPolicy):
    """The paper's cheap variant (rpow-d): a client's loss is the one that it told when it last took part."""

    name: ClassVar[str] = "loss"
    needs_client_loss: ClassVar[bool] = True
    candidates: float = option(2.0, "candidates per client that is wanted (the paper's d/m)", low=1)

    def choose(self, pool: Pool, state: State) -> tuple[Tensor, State]:
        wide = replace(pool, count=min(len(pool.ids), round(self.candidates * pool.count)))
        drawn = top_scores(wide, Size().scores(wide))
        few = pool.subset(torch.isin(pool.ids, drawn))
        return top_scores(few, few.loss), state
