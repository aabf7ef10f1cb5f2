"""The server in one round, as a method sees it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from equipoise.contract.task import Task
from equipoise.contract.words import TrainingConfig
from equipoise.core.trees import State, Params


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
        return {name: mean[name] if name in self.task.batch_stat_names else value for name, value in new.items()}

    def scoped(self, key: str) -> Server:
        """The same server seen by a method that is part of another."""
        inner = copy.copy(self)
        inner.state = self.state[key]
        return inner
