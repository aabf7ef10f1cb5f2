"""Learned client selection: a contextual bandit that maximises utility per second.

The utility of a reply is linear in what the server knows of the client, and the mean utility of a
round's replies is the decrease of the server's loss in that round. The weights are learned with
linear Thompson sampling (Agrawal and Goyal, "Thompson Sampling for Contextual Bandits with Linear
Payoffs", ICML 2013, arXiv:1209.3352) with forgetting, because late rounds of a run bring less than
early ones.
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
MIN_UTILITY = 0.05
"""Lower bound of a client's utility, so that sums over a set stay positive."""


@dataclass(frozen=True)
class LearnedSelection(SelectionPolicy):
    """Learn the utility of replies from size, loss and waiting time of a client.

    The controls show what learning adds: `zero` gives all clients the same utility, so that only
    times count; `random` draws new weights in every round.

    The state holds the ridge regression, `A` `[4, 4]` and `b` `[4]`, and the running size of the
    progress (`scale`).
    """

    name: ClassVar[str] = "learned"
    needs_client_loss: ClassVar[bool] = True
    needs_server_loss: ClassVar[bool] = True
    control: str = option(
        "learned", "whether utilities are learned, all equal, or random", choices=CONTROLS
    )
    forgetting: float = option(
        0.98, "weight of earlier rounds, per round (1 forgets nothing)", above=0, high=1
    )
    exploration: float = option(0.3, "scale of the noise of Thompson sampling", low=0)
    floor: float = option(
        0.25,
        "smallest participation rate of a client, relative to that of uniform cohorts",
        low=0,
        high=1,
    )

    def init(self) -> State:
        """Start with a unit ridge and no observations."""
        return {
            "A": torch.eye(NUM_FEATURES, dtype=torch.float64),
            "b": torch.zeros(NUM_FEATURES, dtype=torch.float64),
            "scale": torch.zeros((), dtype=torch.float64),
        }

    def choose(self, pool: Pool, state: State) -> tuple[Tensor, State]:
        """Select the set with the highest sampled utility per second."""
        weights = self.sample_weights(pool, state)
        utility = (client_features(pool) @ weights).clamp(min=MIN_UTILITY)
        return max_utility_per_second(pool, utility, self.overdue(pool)), state

    def overdue(self, pool: Pool) -> Tensor:
        """Return a mask `[P]` of the clients that are asked because they have waited too long.

        If there are too many, the slowest come first: they wait for each other anyway.
        """
        late = pool.subset(self.floor * pool.count * (pool.round - pool.last) > len(pool.ids))
        return torch.isin(pool.ids, top_scores(late, late.seconds))

    def sample_weights(self, pool: Pool, state: State) -> Tensor:
        """Draw weights `[4]` from the posterior; its prior mean gives every reply utility 1."""
        prior = torch.tensor([1.0, *[0.0] * (NUM_FEATURES - 1)], dtype=torch.float64)
        if self.control == "zero":
            return prior
        key = rng.keys(pool.seed, np.arange(NUM_FEATURES), pool.round, SELECTION[1])
        noise = torch.from_numpy(rng.box_muller(*rng.uniform(key, 2).T))
        if self.control == "random":
            return prior + noise
        mean = torch.linalg.solve(state["A"], state["b"])
        root: Tensor = torch.linalg.cholesky(torch.linalg.inv(state["A"]))
        draw: Tensor = prior + mean + self.exploration * root @ noise
        return draw

    def observe(self, feedback: RoundFeedback, state: State) -> State:
        """Regress the progress, relative to its running size, on the mean features of replies."""
        if not bool(feedback.arrived.any()):
            return state
        decay = self.forgetting
        size = torch.as_tensor(abs(feedback.progress), dtype=torch.float64)
        average = decay * state["scale"] + (1 - decay) * size
        scale = torch.where(state["scale"] == 0, size, average)
        x = client_features(feedback.pool)[feedback.arrived].mean(0)
        y = feedback.progress / scale.clamp(min=1e-12) - x[0]
        identity = torch.eye(NUM_FEATURES, dtype=torch.float64)
        A = decay * state["A"] + (1 - decay) * identity + torch.outer(x, x)
        return {"A": A, "b": decay * state["b"] + y * x, "scale": scale}


def client_features(pool: Pool) -> Tensor:
    """Return the features of clients, `[P, 4]`.

    They are a constant 1 and the logarithms of size, reported loss and rounds since the client was
    asked, standardised over the pool; 0 where a value is not known.
    """
    waited = (pool.round - pool.last).double()
    known = torch.stack(
        [pool.sizes.double().log1p(), pool.loss.double().log1p(), waited.log1p()], 1
    )
    centred = known - known.nanmean(0)
    deviation = centred.nan_to_num(0.0).square().mean(0).sqrt().clamp(min=1e-6)
    ones = torch.ones(len(known), 1, dtype=torch.float64)
    return torch.cat([ones, (centred / deviation).nan_to_num(0.0)], 1)


def max_utility_per_second(pool: Pool, utility: Tensor, required: Tensor) -> Tensor:
    """Find the set of clients with the highest utility per second.

    The slowest client of a set determines its time. For each time that a client takes, the best
    clients that are no slower form a candidate set. Clients without a known time count with the
    median.

    Args:
        pool: The clients `[P]`.
        utility: Their utilities `[P]`.
        required: Mask `[P]` of the clients that must be in the set.

    Returns:
        The numbers of `pool.count` clients, ascending.
    """
    if pool.count >= len(pool.ids):
        return pool.ids
    median = pool.seconds.nanmedian().nan_to_num(nan=1.0)
    seconds = torch.where(pool.seconds.isnan(), median, pool.seconds).double()
    min_limit = float(seconds[required].max()) if bool(required.any()) else 0.0
    limits = seconds.sort().values[pool.count - 1 :].clamp(min=min_limit).unique()
    priority = utility.masked_fill(required, torch.inf)
    rates = []
    for limit in limits.tolist():
        within = seconds <= limit
        best = priority[within].topk(pool.count).indices
        rates.append(float(utility[within][best].sum()) / max(limit, 1e-9))
    within = seconds <= limits[int(torch.tensor(rates).argmax())]
    return top_scores(pool.subset(within), priority[within])
