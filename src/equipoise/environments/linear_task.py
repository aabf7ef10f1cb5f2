"""Agents with linear value functions as a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from equipoise.core import (
    LocalTrainRequest,
    Method,
    Options,
    Params,
    RngContext,
    State,
    TrainingConfig,
    option,
)
from equipoise.environments.agent_task import RLTask
from equipoise.environments.tabular_mdp import DEFAULT_GAMMA, TabularMDP
from equipoise.utils.errors import UsageError

if TYPE_CHECKING:
    from equipoise.environments.linear_mdp import LinearProblem

MODELS = ("v", "q")


@dataclass(frozen=True)
class LinearConfig(Options):
    """Options that every task with linear values shares."""

    agents: int = option(20, "agents (clients), each in an environment of its own", low=1)
    rank: int = option(3, "features d of the shared representation", low=1)
    gamma: float = option(DEFAULT_GAMMA, "discount of a later reward", above=0, below=1)
    epsilon: float = option(
        0.5, "chance of a random action, else the best known one", low=0, high=1
    )


class LinearTask(RLTask):
    """Scores: `error` |V - V^i| / |V^i| against the agent's own true values; `visited` the same, weighted by how often

    the agent's policy visits them (with actions: the best policy with its chance of random ones); `subspace` the sine
    of the largest angle between the representation and the best one for all agents; with actions also `regret`: what
    the greedy policy loses of the optimal return. All are exact.
    """

    learner_kind: ClassVar[str] = "linear"
    metric = "error"
    higher_is_better = False

    def __init__(
        self,
        name: str,
        mdps: Sequence[TabularMDP],
        config: LinearConfig,
        model: str,
        training: TrainingConfig,
        seed: int,
    ) -> None:
        from equipoise.environments.linear_mdp import LinearProblem

        self.name, self.config, self.model, self.training, self.seed = (
            name,
            config,
            model,
            training,
            seed,
        )
        self.num_clients, self.blocks = len(mdps), {"backbone": ("phi",), "head": ("theta",)}
        self.problem: LinearProblem = LinearProblem(mdps, config.rank, config.epsilon)

    def init_params(self, seed: int) -> Params:
        """Random features of unit size, weights of zero."""
        from equipoise.environments.linear_mdp import initial_features

        theta = torch.zeros(self.problem.rank, dtype=torch.float64)
        return {"phi": initial_features(self.problem, seed), "theta": theta}

    def init_data_state(self, ids: Tensor) -> State:
        position = torch.from_numpy(self.problem.initial_states(self.seed))[ids]
        surprise = torch.zeros(len(ids), dtype=torch.float64)
        return {"position": position, "taken": torch.zeros_like(ids), "surprise": surprise}

    def check_method(self, method: Method) -> None:
        """There is no loss: a method that trains, or decides how to train, by one cannot work."""
        if (
            method.overridden_hooks & {"train", "configure_training"}
            and method.learner_kind != self.learner_kind
        ):
            raise UsageError(
                f"{method.name} trains on a loss, and task '{self.name}' has none: try pfedtd-rep"
            )

    def fit_stack(
        self, ids: Tensor, request: LocalTrainRequest, source: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        from equipoise.environments import linear_mdp, tabular_q

        if request.proximal or request.grad_correction or request.loss:
            raise UsageError(
                f"task '{self.name}' has no loss: choose a method without one of its own"
            )
        tabular_q.set_num_threads(torch.get_num_threads())
        params, before = request.params, (source["position"], source["surprise"])
        phi, theta, position, surprise = (
            value.contiguous().clone() for value in (params["phi"], params["theta"], *before)
        )
        agents, taken = ids.numpy(), source["taken"].numpy()
        moves = (
            "phi" in request.trainable,
            "theta" in request.trainable,
            "relative" in request.aux,
        )
        keys = self.problem.rng_keys(rng.seed, agents, taken)
        linear_mdp.advance(
            self.problem,
            agents,
            phi,
            theta,
            position,
            surprise,
            keys,
            taken,
            request.epochs,
            request.lr,
            moves,
        )
        after = {
            "position": position,
            "taken": source["taken"] + request.epochs,
            "surprise": surprise,
        }
        return {"phi": phi, "theta": theta}, {}, after

    def evaluate_stack(self, ids: Tensor, params: Params, split: str) -> Params:
        from equipoise.environments import linear_mdp

        values = torch.einsum("ksd,kd->ks", params["phi"], params["theta"])
        scores = {
            "error": linear_mdp.value_error(values, self.problem.true_values[ids]),
            "visited": linear_mdp.value_error(
                values, self.problem.true_values[ids], self._visits[ids]
            ),
            "subspace": linear_mdp.subspace_distance(params["phi"], self.problem.best_subspace),
        }
        if self.model == "q":
            own = {name: stack[ids] for name, stack in self._mdps.items()}
            scores["regret"] = linear_mdp.greedy_regret(own, values.reshape(own["R"].shape))
        return scores

    def evaluate_server(self, stack: Params, split: str) -> Params:
        """One model for everybody: the mean of its scores over all agents."""
        everybody = torch.arange(self.num_clients)
        scores = [
            self.evaluate_stack(
                everybody,
                {name: v[k].expand(self.num_clients, *v.shape[1:]) for name, v in stack.items()},
                split,
            )
            for k in range(len(stack["phi"]))
        ]
        return {name: torch.stack([score[name].mean() for score in scores]) for name in scores[0]}

    def has_split(self, split: str) -> bool:
        return split == "test"

    def summary(self, params: Params) -> State:
        """The least mean error that any representation of this rank allows."""
        from equipoise.environments.linear_mdp import value_error

        truth, span = self.problem.true_values, self.problem.best_subspace
        return {"floor": float(value_error(truth @ span @ span.mT, truth).mean())}

    @cached_property
    def _visits(self) -> Tensor:
        """Long-run shares of steps, ``[K, S A]``."""
        from equipoise.environments.tabular_mdp import epsilon_greedy_policy
        from equipoise.environments.theory import occupancy

        each = [
            occupancy(mdp, epsilon_greedy_policy(mdp, self.config.epsilon)).reshape(-1)
            for mdp in self.problem.mdps
        ]
        return torch.from_numpy(np.stack(each))

    @cached_property
    def _mdps(self) -> dict[str, Tensor]:
        arrays = {
            name: [getattr(mdp, name) for mdp in self.problem.mdps]
            for name in ("P", "R", "discount", "start")
        }
        arrays["best"] = [mdp.q_star.max(axis=1) for mdp in self.problem.mdps]
        return {name: torch.from_numpy(np.stack(values)) for name, values in arrays.items()}
