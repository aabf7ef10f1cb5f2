"""Utility and speed, as in Oort (Lai et al., OSDI 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Pool, SelectionPolicy, State, option
from equipoise.contract.selection import top_scores, fill_unknown


@dataclass(frozen=True)
class Oort(SelectionPolicy):
    """U_i = n_i loss_i (T / t_i)^alpha for t_i > T, and a bonus for clients that were not asked for long.

    A share of the places goes to clients that have never replied; it falls from 0.9 to 0.2 over the rounds. Unlike in
    the paper, the loss is a client's mean and not the root of its mean square, and T is the median of the known times.
    """

    name: ClassVar[str] = "oort"
    needs_client_loss: ClassVar[bool] = True
    alpha: float = option(2.0, "how much slowness costs", low=0)

    def choose(self, pool: Pool, state: State) -> tuple[Tensor, State]:
        met = fill_unknown(pool)
        explore = max(0.2, 0.9 * 0.98**pool.round)
        new = min(int((~met).sum()), math.ceil(explore * pool.count))
        old = min(int(met.sum()), pool.count - new)
        chosen = [
            top_scores(replace(part, count=count), scores)
            for part, count, scores in (
                (pool.subset(met), old, self.scores(pool.subset(met))),
                (pool.subset(~met), pool.count - old, torch.zeros(int((~met).sum()))),
            )
            if count
        ]
        return torch.cat(chosen).sort().values, state

    def scores(self, pool: Pool) -> Tensor:
        seconds = pool.seconds.nan_to_num(nan=0.0)
        usual = seconds.median() if len(seconds) else seconds.sum()
        utility = pool.sizes * pool.loss * torch.where(seconds > usual, (usual / seconds) ** self.alpha, 1.0)
        waited = 0.1 * math.log(max(2, pool.round)) / pool.last.clamp(min=1)
        return utility / utility.max().clamp(min=1e-300) + waited.sqrt() if len(utility) else utility
