"""Client selection policies (decision 0), independent of the training method."""

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
    """Clients that can be selected, and what the server knows of each.

    Attributes:
        ids: Client numbers in ascending order `[P]`; the other tensors are in this order.
        sizes: Numbers of training examples.
        loss: Training loss of the last received model, as reported; NaN if never reported.
        seconds: Simulated time of the last round, also if it was too late; NaN before the first.
        last: Round in which the client was asked last; 0 before the first.
        replies: How often it replied in time.
        count: How many clients to select.
        seed: Seed of the run.
        round: Number of the round.
    """

    ids: Tensor
    sizes: Tensor
    loss: Tensor
    seconds: Tensor
    last: Tensor
    replies: Tensor
    count: int
    seed: int
    round: int

    def uniform(self) -> Tensor:
        """Draw a number in [0, 1) per client `[P]`, determined by seed, client and round."""
        return torch.from_numpy(
            rng.uniform(rng.keys(self.seed, self.ids.numpy(), self.round, SELECTION[0]), 1)[:, 0]
        )

    def subset(self, rows: Tensor) -> Pool:
        """Return the pool of some of these clients, by index or mask."""
        parts = {
            name: value[rows] for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return Pool(**parts, count=self.count, seed=self.seed, round=self.round)


@dataclass
class RoundFeedback:
    """Outcome of a round, for policies that learn.

    Attributes:
        pool: All clients that were asked, as known before the round.
        arrived: Mask of those whose replies arrived.
        seconds: Simulated time of the round.
        progress: Decrease of the log of the server's public loss; 0 unless the policy needs it.
    """

    pool: Pool
    arrived: Tensor
    seconds: float
    progress: float


@dataclass(frozen=True)
class SelectionPolicy(Options):
    """A selection policy. Its fields are its options; overriding `scores` is enough."""

    name: ClassVar[str]
    is_stateful: ClassVar[bool] = True
    """Whether it uses more than the clients' sizes."""
    needs_client_loss: ClassVar[bool] = False
    """Whether clients report the training loss of the received model."""
    needs_server_loss: ClassVar[bool] = False
    """Whether the server evaluates its loss on public data each round."""

    def init(self) -> State:
        """Return the state before the first round."""
        return {}

    def choose(self, pool: Pool, state: State) -> tuple[Tensor, State]:
        """Select at most `pool.count` of `pool.ids`.

        Returns:
            Client numbers in ascending order, by default those with the highest scores; and the
            policy's state.
        """
        return top_scores(pool, self.scores(pool)), state

    def scores(self, pool: Pool) -> Tensor:
        """Return a score per client `[P]`; the highest are selected, ties at random."""
        raise NotImplementedError

    def observe(self, feedback: RoundFeedback, state: State) -> State:
        """Update the state after a round."""
        return state


def top_scores(pool: Pool, scores: Tensor) -> Tensor:
    """Return the clients with the highest scores; NaN counts as highest (nothing is known yet)."""
    scores = scores.double().nan_to_num(nan=torch.inf)
    by_chance = pool.uniform().argsort()
    order = by_chance[scores[by_chance].argsort(descending=True, stable=True)]
    return pool.ids[order[: pool.count].sort().values]


def has_reported(pool: Pool) -> Tensor:
    """Return a mask of the clients that have reported a loss."""
    return ~pool.loss.isnan()
