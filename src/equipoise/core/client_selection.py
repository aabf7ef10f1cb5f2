"""Decision 0 as a policy of its own, beside any method: who is asked, of those who can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.config.schema import Options
from equipoise.utils import rng
from equipoise.utils.pytree import State
from equipoise.utils.rng import SELECTION


@dataclass
class Pool:
    """Clients, ascending, and what the server knows of each: tensors in the order of ``ids``."""

    ids: Tensor
    sizes: Tensor
    """Training samples."""
    loss: Tensor
    """Training loss of the model that it received last, as it told; NaN where it has not told any."""
    seconds: Tensor
    """Simulated time of its last round, or how long it was waited for in vain; NaN before the first."""
    last: Tensor
    """The round in which it was asked last; 0 before the first."""
    replies: Tensor
    """How often it replied in time."""
    count: int
    """How many are to be chosen."""
    seed: int
    round: int

    def uniform(self) -> Tensor:
        """A number in [0, 1) per client, drawn by seed, client and round."""
        return torch.from_numpy(
            rng.uniform(rng.keys(self.seed, self.ids.numpy(), self.round, SELECTION[0]), 1)[:, 0]
        )

    def subset(self, which: Tensor) -> Pool:
        """Some of these clients."""
        parts = {
            name: value[which] for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return Pool(**parts, count=self.count, seed=self.seed, round=self.round)


@dataclass
class RoundFeedback:
    """What a round brought."""

    pool: Pool
    """All clients, as they were known before."""
    arrived: Tensor
    """Booleans: whose replies came."""
    seconds: float
    """Simulated time of the round."""
    progress: float
    """By how much the logarithm of the server's loss on public data fell; 0 unless the policy asks for it."""


@dataclass(frozen=True)
class SelectionPolicy(Options):
    """A policy of decision 0; its fields are its options. Whoever overrides ``scores`` alone has one."""

    name: ClassVar[str]
    is_stateful: ClassVar[bool] = True
    """Whether it reads more of clients than their sizes."""
    needs_client_loss: ClassVar[bool] = False
    """Whether clients must tell the training loss of the model that they receive: one number per upload."""
    needs_server_loss: ClassVar[bool] = False
    """Whether it needs the progress of the server's loss on public data: one evaluation per round."""

    def init(self) -> State:
        """State before the first round."""
        return {}

    def choose(self, pool: Pool, state: State) -> tuple[Tensor, State]:
        """At most ``pool.count`` of ``pool.ids``, ascending; by default those with the highest scores."""
        return top_scores(pool, self.scores(pool)), state

    def scores(self, pool: Pool) -> Tensor:
        """A number per client of the pool: the highest are asked, equal ones in an order of chance."""
        raise NotImplementedError

    def observe(self, heard: RoundFeedback, state: State) -> State:
        """Learn from a round."""
        return state


def top_scores(pool: Pool, scores: Tensor) -> Tensor:
    """The clients with the highest scores; what is not a number comes first, for nothing is known there."""
    scores = scores.double().nan_to_num(nan=torch.inf)
    by_chance = pool.uniform().argsort()
    order = by_chance[scores[by_chance].argsort(descending=True, stable=True)]
    return pool.ids[order[: pool.count].sort().values]


def fill_unknown(pool: Pool) -> Tensor:
    """Who has told something: has been asked and has answered once."""
    return ~pool.loss.isnan()
