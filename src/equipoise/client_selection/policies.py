"""Everybody has the same chance: FedAvg's own cohorts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import Pool, SelectionPolicy, State, option
from equipoise.core.client_selection import has_reported, top_scores
from equipoise.utils import rng


@dataclass(frozen=True)
class Uniform(SelectionPolicy):
    """Drawn by the seed alone."""

    name: ClassVar[str] = "uniform"
    is_stateful: ClassVar[bool] = False

    def choose(self, pool: Pool, state: State) -> tuple[Tensor, State]:
        if pool.count >= len(pool.ids):
            return pool.ids, state
        return pool.ids[
            torch.from_numpy(rng.drawn(pool.seed, pool.round, len(pool.ids), pool.count))
        ], state


@dataclass(frozen=True)
class Size(SelectionPolicy):
    """Drawn one after another without replacement, each with a chance by its size (Gumbel's trick)."""

    name: ClassVar[str] = "size"
    is_stateful: ClassVar[bool] = False

    def scores(self, pool: Pool) -> Tensor:
        return (
            pool.sizes.double().clamp(min=1).log() - (-pool.uniform().clamp(min=1e-300).log()).log()
        )


@dataclass(frozen=True)
class Fair(SelectionPolicy):
    """Whoever has never replied first, then whoever waits longest.

    Turns are equal, and not replies: to have equal numbers of replies, everybody would have to wait for the slowest.
    """

    name: ClassVar[str] = "fair"

    def scores(self, pool: Pool) -> Tensor:
        return torch.where(pool.replies == 0, torch.inf, -pool.last.double())


@dataclass(frozen=True)
class PowerOfChoice(SelectionPolicy):
    """The paper's cheap variant (rpow-d): a client's loss is the one that it told when it last took part."""

    name: ClassVar[str] = "loss"
    needs_client_loss: ClassVar[bool] = True
    candidates: float = option(2.0, "candidates per client that is wanted (the paper's d/m)", low=1)

    def choose(self, pool: Pool, state: State) -> tuple[Tensor, State]:
        wide = replace(pool, count=min(len(pool.ids), round(self.candidates * pool.count)))
        drawn = top_scores(wide, Size().scores(wide))
        few = pool.subset(torch.isin(pool.ids, drawn))
        return top_scores(few, few.loss), state


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
        met = has_reported(pool)
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
        utility = (
            pool.sizes
            * pool.loss
            * torch.where(seconds > usual, (usual / seconds) ** self.alpha, 1.0)
        )
        waited = 0.1 * math.log(max(2, pool.round)) / pool.last.clamp(min=1)
        return (
            utility / utility.max().clamp(min=1e-300) + waited.sqrt() if len(utility) else utility
        )
