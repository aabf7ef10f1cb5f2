"""The server in one round, as a method sees it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from equipoise.core.messages import TrainingConfig
from equipoise.core.task import Task
from equipoise.utils import rng
from equipoise.utils.pytree import Params, State


@dataclass
class Server:
    """Everything the server knows in one round.

    Attributes:
        task: The task of the run.
        training: Options of local training in this round.
        params: The global model.
        state: State of the method's server half.
        seed: Seed of the run.
        round: Number of the round, from 1.
        num_rounds: Rounds of the whole run.
        participation: Fraction of the clients that a round asks.
        logged: Values that hooks want in the round's log.
        sum_updates: Sums over the accepted replies for given weights, added chunk by chunk in a
            fixed order. Set by the runtime during aggregation.
        influence_ratio: Largest influence of a client relative to the trimmed maximum of the
            cohort, see `core/report_validation.py`. Set by the runtime during aggregation.
        shrunk: Factor by client that counts less, for the round's log.
        uncommitted: Clients that keep the state that they had before the round, because the server
            did not count their replies.
    """

    task: Task
    training: TrainingConfig
    params: Params
    state: State
    seed: int
    round: int
    num_rounds: int
    participation: float = 1.0
    logged: State = field(default_factory=dict)
    sum_updates: Callable[[Tensor | Params], State] | None = None
    influence_ratio: float = math.inf
    shrunk: dict[int, float] = field(default_factory=dict)
    uncommitted: set[int] = field(default_factory=set)

    def evaluate(self, stack: Params, split: str = "public") -> Params:
        """Evaluate models on the server's own data.

        Args:
            stack: Parameters `[K, ...]` of K models.
            split: `public` or `test`.

        Returns:
            Metrics `[K]` by name.
        """
        return self.task.evaluate_server(stack, split)

    def with_client_batch_stats(self, new: Params, mean: Params) -> Params:
        """Take the statistics of batch normalisation from the clients' mean.

        A server step that extrapolates could make a variance negative.

        Args:
            new: The model after the server's step.
            mean: The clients' mean.

        Returns:
            `new`, with the batch statistics of `mean`.
        """
        statistics = self.task.info.batch_stat_names
        return {name: mean[name] if name in statistics else value for name, value in new.items()}

    def uniform(self, count: int, stream: int) -> Tensor:
        """Draw random numbers of the server: those of a client with the number -1.

        Args:
            count: How many numbers.
            stream: The purpose of the draw, from the registry in `utils/rng.py`.

        Returns:
            Numbers in [0, 1), `[count]`, that depend on (seed, round, stream) only.
        """
        key = rng.keys(self.seed, np.array([-1]), self.round, stream)
        return torch.from_numpy(rng.uniform(key, count)[0])

    def uniform_per_client(self, ids: Tensor, count: int, stream: int) -> Tensor:
        """Draw random numbers of the server about clients.

        Args:
            ids: The clients `[K]`.
            count: How many numbers for each.
            stream: The purpose of the draw, from the registry in `utils/rng.py`.

        Returns:
            Numbers in [0, 1), `[K, count]`, that depend on (seed, client, round, stream) only.
        """
        keys = rng.keys(self.seed, ids.numpy(), self.round, stream)
        return torch.from_numpy(rng.uniform(keys, count))

    def scoped(self, key: str) -> Server:
        """Return the same server as seen by a method that is part of another.

        Args:
            key: Where the inner method's state is kept in this state.
        """
        inner = copy.copy(self)
        inner.state = self.state[key]
        return inner
