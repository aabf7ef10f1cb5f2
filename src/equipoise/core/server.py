"""The server in one round, as a method sees it."""

from __future__ import annotations

import copy
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
    """All that the server knows in one round."""

    task: Task
    training: TrainingConfig
    params: Params
    state: State
    seed: int
    round: int
    num_rounds: int
    participation: float = 1.0
    """The share of the clients that the run asks for in a round."""
    logged: State = field(default_factory=dict)
    """What hooks want to see in the round's log."""

    def evaluate(self, stack: Params, split: str = "public") -> Params:
        """Scores ``[K]`` of a stack of models on the server's own data."""
        return self.task.evaluate_server(stack, split)

    def with_client_batch_stats(self, new: Params, mean: Params) -> Params:
        """``new``, but for the statistics of batch normalisation, which are those of the clients' ``mean``: a variance
        that a step extrapolates may become negative."""
        return {
            name: mean[name] if name in self.task.batch_stat_names else value
            for name, value in new.items()
        }

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
        """The same server seen by a method that is part of another."""
        inner = copy.copy(self)
        inner.state = self.state[key]
        return inner
