"""Published client selection policies.

- `uniform`: McMahan et al., AISTATS 2017 (FedAvg's own cohorts).
- `size`: drawn with probabilities proportional to the number of examples.
- `fair`: every client in turn.
- `loss`: Power-of-Choice, Cho et al., "Towards Understanding Biased Client Selection in Federated
  Learning", AISTATS 2022 (arXiv:2010.01243).
- `oort`: Lai et al., "Oort: Efficient Federated Learning via Guided Participant Selection", OSDI
  2021 (arXiv:2010.06081).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import Pool, SelectionPolicy, State, option
from equipoise.core.client_selection import has_reported, top_scores
from equipoise.utils import rng

TINY = 1e-300

# Oort's share of new clients: 0.9 in the beginning, times 0.98 per round, at least 0.2.
OORT_INITIAL_EXPLORATION = 0.9
OORT_EXPLORATION_DECAY = 0.98
OORT_MIN_EXPLORATION = 0.2


@dataclass(frozen=True)
class Uniform(SelectionPolicy):
    """Draw clients uniformly, by the seed alone."""

    name: ClassVar[str] = "uniform"
    is_stateful: ClassVar[bool] = False

    def choose(self, pool: Pool, state: State) -> tuple[Tensor, State]:
        """Draw a cohort without replacement."""
        if pool.count >= len(pool.ids):
            return pool.ids, state
        rows = rng.sample_without_replacement(pool.seed, pool.round, len(pool.ids), pool.count)
        return pool.ids[torch.from_numpy(rows)], state


@dataclass(frozen=True)
class Size(SelectionPolicy):
    """Draw clients without replacement, with probabilities proportional to their sizes."""

    name: ClassVar[str] = "size"
    is_stateful: ClassVar[bool] = False

    def scores(self, pool: Pool) -> Tensor:
        """Return log size plus Gumbel noise: the highest are such a draw (Gumbel-top-k)."""
        gumbel = -(-pool.uniform().clamp(min=TINY).log()).log()
        return pool.sizes.double().clamp(min=1).log() + gumbel


@dataclass(frozen=True)
class Fair(SelectionPolicy):
    """Select clients that have never replied first, then those that have waited longest.

    It equalises turns, not replies: for equal numbers of replies all would have to wait for the
    slowest.
    """

    name: ClassVar[str] = "fair"

    def scores(self, pool: Pool) -> Tensor:
        """Return the negative of the round in which a client was last asked."""
        return torch.where(pool.replies == 0, torch.inf, -pool.last.double())


@dataclass(frozen=True)
class PowerOfChoice(SelectionPolicy):
    """Draw candidates by size and select those with the highest loss (the paper's rpow-d).

    A client's loss is the one that it reported when it last took part, so that no extra
    communication is needed.
    """

    name: ClassVar[str] = "loss"
    needs_client_loss: ClassVar[bool] = True
    candidates: float = option(2.0, "candidates per selected client (the paper's d/m)", low=1)

    def choose(self, pool: Pool, state: State) -> tuple[Tensor, State]:
        """Draw d candidates, then take the m with the highest loss."""
        num_candidates = min(len(pool.ids), round(self.candidates * pool.count))
        wide_pool = replace(pool, count=num_candidates)
        candidate_ids = top_scores(wide_pool, Size().scores(wide_pool))
        candidates = pool.subset(torch.isin(pool.ids, candidate_ids))
        return top_scores(candidates, candidates.loss), state


@dataclass(frozen=True)
class Oort(SelectionPolicy):
    """Select by utility U_i = n_i loss_i (T / t_i)^alpha, without the factor where t_i <= T.

    Clients that were not asked for long get a bonus, and a share of the places goes to clients that
    have never replied. Unlike in the paper, the loss is a client's mean and not the root of its
    mean square, and T is the median of the known times.
    """

    name: ClassVar[str] = "oort"
    needs_client_loss: ClassVar[bool] = True
    alpha: float = option(2.0, "penalty exponent of slow clients", low=0)

    def choose(self, pool: Pool, state: State) -> tuple[Tensor, State]:
        """Fill a share of the places with new clients and the others by utility."""
        known = has_reported(pool)
        exploration = max(
            OORT_MIN_EXPLORATION, OORT_INITIAL_EXPLORATION * OORT_EXPLORATION_DECAY**pool.round
        )
        num_new = min(int((~known).sum()), math.ceil(exploration * pool.count))
        num_known = min(int(known.sum()), pool.count - num_new)
        selected = []
        if num_known:
            part = pool.subset(known)
            selected.append(top_scores(replace(part, count=num_known), self.scores(part)))
        if pool.count > num_known:
            part = pool.subset(~known)
            no_scores = torch.zeros(len(part.ids))
            selected.append(top_scores(replace(part, count=pool.count - num_known), no_scores))
        return torch.cat(selected).sort().values, state

    def scores(self, pool: Pool) -> Tensor:
        """Return the utility relative to the highest one, plus the bonus for waiting."""
        if not len(pool.ids):
            return pool.sizes * pool.loss
        seconds = pool.seconds.nan_to_num(nan=0.0)
        preferred = seconds.median()
        slowness = torch.where(seconds > preferred, (preferred / seconds) ** self.alpha, 1.0)
        utility = pool.sizes * pool.loss * slowness
        bonus = (0.1 * math.log(max(2, pool.round)) / pool.last.clamp(min=1)).sqrt()
        return utility / utility.max().clamp(min=TINY) + bonus
