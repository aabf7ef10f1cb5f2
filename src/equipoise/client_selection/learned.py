"""A contextual bandit: what a client's reply is worth is learned, and the set with the most worth per second is asked.

The worth of a reply is linear in what the server knows of the client; the mean worth of a round's replies is the fall
of the server's loss in that round. Linear Thompson sampling (Agrawal and Goyal, 2013) with forgetting, for rounds late
in a run bring less than early ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from equipoise.core import Pool, RoundFeedback, SelectionPolicy, State, option
from equipoise.core.client_selection import top_scores
from equipoise.utils import rng
from equipoise.utils.rng import SELECTION

CONTROLS = ("learned", "zero", "random")
NUM_FEATURES = 4
LEAST = 0.05  # worth of a client that seems to do harm, as a part of the best


@dataclass(frozen=True)
class LearnedSelection(SelectionPolicy):
    """Features: one, log size, log of the told loss, log of the rounds since it was asked; scaled over the pool.

    With its controls: ``zero`` knows times only (all worths are equal), ``random`` draws its weights anew each round.
    """

    name: ClassVar[str] = "learned"
    needs_client_loss: ClassVar[bool] = True
    needs_server_loss: ClassVar[bool] = True
    control: str = option(
        "learned", "whether worths are learned, all equal, or random", choices=CONTROLS
    )
    forgetting: float = option(0.98, "what is kept of earlier rounds per round", above=0, high=1)
    exploration: float = option(0.3, "spread of Thompson's draws", low=0)
    floor: float = option(
        0.25,
        "how often everybody is asked at least, as a part of how often uniform cohorts would",
        low=0,
        high=1,
    )

    def init(self) -> State:
        return {
            "A": torch.eye(NUM_FEATURES, dtype=torch.float64),
            "b": torch.zeros(NUM_FEATURES, dtype=torch.float64),
            "scale": torch.zeros((), dtype=torch.float64),
        }

    def choose(self, pool: Pool, state: State) -> tuple[Tensor, State]:
        worth = (client_features(pool) @ self.sample_weights(pool, state)).clamp(min=LEAST)
        return max_utility_per_second(pool, worth, self.overdue(pool)), state

    def overdue(self, pool: Pool) -> Tensor:
        """Who has waited too long and is asked in any case: the slowest first, for they wait for each other anyway."""
        late = pool.subset(self.floor * pool.count * (pool.round - pool.last) > len(pool.ids))
        return torch.isin(pool.ids, top_scores(late, late.seconds))

    def sample_weights(self, pool: Pool, state: State) -> Tensor:
        """Thompson's draw; the first weight is a prior: every reply is worth something."""
        prior = torch.tensor([1.0, *[0.0] * (NUM_FEATURES - 1)], dtype=torch.float64)
        if self.control == "zero":
            return prior
        key = rng.keys(pool.seed, np.arange(NUM_FEATURES), pool.round, SELECTION[1])
        noise = torch.from_numpy(rng.normal_of(*rng.uniform(key, 2).T))
        if self.control == "random":
            return prior + noise
        mean = torch.linalg.solve(state["A"], state["b"])
        root: Tensor = torch.linalg.cholesky(torch.linalg.inv(state["A"]))
        draw: Tensor = prior + mean + self.exploration * root @ noise
        return draw

    def observe(self, heard: RoundFeedback, state: State) -> State:
        """Ridge regression of the progress, in units of its usual size, on the mean features of who replied."""
        if not bool(heard.arrived.any()):
            return state
        keep = self.forgetting
        size = torch.as_tensor(abs(heard.progress), dtype=torch.float64)
        scale = torch.where(state["scale"] == 0, size, keep * state["scale"] + (1 - keep) * size)
        x = client_features(heard.pool)[heard.arrived].mean(0)
        y = heard.progress / scale.clamp(min=1e-12) - x[0]
        identity = torch.eye(NUM_FEATURES, dtype=torch.float64)
        A = keep * state["A"] + (1 - keep) * identity + torch.outer(x, x)
        return {"A": A, "b": keep * state["b"] + y * x, "scale": scale}


def client_features(pool: Pool) -> Tensor:
    """``[K, 4]``: a one, and what is known, each with mean 0 and spread 1 over the pool; 0 where it is not known."""
    waited = (pool.round - pool.last).double()
    known = torch.stack(
        [pool.sizes.double().log1p(), pool.loss.double().log1p(), waited.log1p()], 1
    )
    centred = known - known.nanmean(0)
    spread = centred.nan_to_num(0.0).square().mean(0).sqrt().clamp(min=1e-6)
    return torch.cat(
        [torch.ones(len(known), 1, dtype=torch.float64), (centred / spread).nan_to_num(0.0)], 1
    )


def max_utility_per_second(pool: Pool, worth: Tensor, due: Tensor) -> Tensor:
    """The set whose worth per second is largest, when the slowest of a set tells its time; who is ``due`` is in it.

    For each time that a client is known to take, the best clients that are no slower; the time whose set is best wins.
    Whoever has never been asked counts with the median time.
    """
    if pool.count >= len(pool.ids):
        return pool.ids
    usual = pool.seconds.nanmedian().nan_to_num(nan=1.0)
    seconds = torch.where(pool.seconds.isnan(), usual, pool.seconds).double()
    longest = float(seconds[due].max()) if bool(due.any()) else 0.0
    limits = seconds.sort().values[pool.count - 1 :].clamp(min=longest).unique()
    order = worth.masked_fill(due, torch.inf)
    rates = []
    for limit in limits.tolist():
        within = seconds <= limit
        chosen = order[within].topk(pool.count).indices
        rates.append(float(worth[within][chosen].sum()) / max(limit, 1e-9))
    within = seconds <= limits[int(torch.tensor(rates).argmax())]
    return top_scores(pool.subset(within), order[within])
