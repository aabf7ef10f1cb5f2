"""Base class of reinforcement learning tasks.

Clients are agents; an epoch is one step, and every agent has the same weight.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from equipoise.core import (
    ExperimentTask,
    LocalTrainRequest,
    Method,
    Params,
    RngContext,
    State,
    TrainingConfig,
)
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import index, map_leaves


class RLTask(ExperimentTask):
    """A task of agents in environments.

    Subclasses implement `fit_stack` and `evaluate_stack`; one agent is a stack of one.
    """

    suggested_method: str
    """A method that learns these agents, named in errors."""

    def check_method(self, method: Method) -> None:
        """Refuse methods that train by a loss: these agents have none.

        Args:
            method: Method of the run.

        Raises:
            UsageError: If the method does not suit.
        """
        trains_itself = method.overridden_hooks & {"train", "configure_training"}
        if trains_itself and method.capabilities.learner_kind != self.info.learner_kind:
            raise UsageError(
                f"{method.name} trains on a loss, and task '{self.info.name}' has none: "
                f"try {self.suggested_method}"
            )

    def num_examples(self, ids: Tensor) -> Tensor:
        """Return 1 for every agent."""
        return torch.ones_like(ids)

    def num_steps(
        self,
        ids: Tensor,
        epochs: Tensor,
        training: TrainingConfig,
        data_range: tuple[float, float] = (0.0, 1.0),
    ) -> Tensor:
        """Return `epochs`: they are steps."""
        return epochs

    def fit(
        self, ids: Tensor, request: LocalTrainRequest, data_state: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """Train one agent as a stack of one."""
        stacked = replace(
            request,
            params=_add_agent_axis(request.params),
            epochs=request.epochs[None],
            lr=request.lr[None],
            aux=_add_agent_axis(request.aux),
        )
        params, anchor, after = self.fit_stack(ids[None], stacked, _add_agent_axis(data_state), rng)
        return index(params, 0), anchor, index(after, 0)

    def evaluate(self, ids: Tensor, params: Params, split: str) -> Params:
        """Evaluate one agent as a stack of one."""
        return index(self.evaluate_stack(ids[None], _add_agent_axis(params), split), 0)


def _add_agent_axis(tree: State) -> State:
    """Return the tree with a leading axis of size 1."""
    stacked: State = map_leaves(lambda value: value[None], tree)
    return stacked
