"""Agents with linear value functions as a task: phi is the backbone, theta the head.

`fit` takes `epochs` as environment steps and `lr` as the learning rate, and updates the trainable
blocks. Everything is in float64. Trajectories continue across rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from equipoise.core import (
    LocalTrainRequest,
    Options,
    Params,
    RngContext,
    State,
    TaskInfo,
    TrainingConfig,
    option,
)
from equipoise.environments.agent_task import RLTask
from equipoise.environments.tabular_mdp import DEFAULT_GAMMA, TabularMDP, epsilon_greedy_policy
from equipoise.environments.theory import occupancy
from equipoise.utils.errors import UsageError

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
    """Agents with linear values. All scores are exact.

    - `error`: |V - V^i| / |V^i| against the agent's own true values;
    - `visited`: the same, weighted by how often the agent's policy visits them (with actions: the
      epsilon-greedy optimal policy);
    - `subspace`: sine of the largest angle between the representation and the best one for all;
    - `regret` (with actions): what the greedy policy loses of the optimal return.

    Numba is optional: `linear_mdp` is imported only where it is used.
    """

    suggested_method = "pfedtd-rep"

    def __init__(
        self,
        name: str,
        mdps: Sequence[TabularMDP],
        config: LinearConfig,
        model: str,
        training: TrainingConfig,
        seed: int,
    ) -> None:
        """Create the task.

        Args:
            name: Name of the task.
            mdps: The agents' MDPs.
            config: Options of the agents.
            model: "v" to evaluate a policy (MDPs with one action), "q" to learn to act.
            training: Defaults of local training.
            seed: Seed of the initial states.
        """
        from equipoise.environments.linear_mdp import LinearProblem

        self.config = config
        self.model = model
        self.seed = seed
        self.info = TaskInfo(
            name,
            len(mdps),
            {"backbone": ("phi",), "head": ("theta",)},
            training,
            learner_kind="linear",
            metric="error",
            higher_is_better=False,
        )
        self.problem = LinearProblem(mdps, config.rank, config.epsilon)

    def init_params(self, seed: int) -> Params:
        """Return random features of unit size and zero weights."""
        from equipoise.environments.linear_mdp import initial_features

        theta = torch.zeros(self.problem.rank, dtype=torch.float64)
        return {"phi": initial_features(self.problem, seed), "theta": theta}

    def init_data_state(self, ids: Tensor) -> State:
        """Return positions, steps and mean squared TD errors of agents that have not acted."""
        return {
            "position": torch.from_numpy(self.problem.initial_states(self.seed))[ids],
            "taken": torch.zeros_like(ids),
            "sq_td_error": torch.zeros(len(ids), dtype=torch.float64),
        }

    def fit_stack(
        self, ids: Tensor, request: LocalTrainRequest, data_state: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """Continue the agents' trajectories; with "relative" in ``aux`` steps on phi are relative.

        Raises:
            UsageError: If the request has a loss.
        """
        from equipoise.environments import linear_mdp, tabular_q

        if request.proximal or request.grad_correction or request.loss:
            raise UsageError(
                f"task '{self.info.name}' has no loss: choose a method without one of its own"
            )
        tabular_q.set_num_threads(torch.get_num_threads())
        phi = request.params["phi"].contiguous().clone()
        theta = request.params["theta"].contiguous().clone()
        position = data_state["position"].contiguous().clone()
        sq_td_error = data_state["sq_td_error"].contiguous().clone()
        agents = ids.numpy()
        taken = data_state["taken"].numpy()
        linear_mdp.advance(
            self.problem,
            agents,
            phi,
            theta,
            position,
            sq_td_error,
            self.problem.rng_keys(rng.seed, agents, taken),
            taken,
            request.epochs,
            request.lr,
            moves=(
                "phi" in request.trainable,
                "theta" in request.trainable,
                "relative" in request.aux,
            ),
        )
        after = {
            "position": position,
            "taken": data_state["taken"] + request.epochs,
            "sq_td_error": sq_td_error,
        }
        return {"phi": phi, "theta": theta}, {}, after

    def evaluate_stack(self, ids: Tensor, params: Params, split: str) -> Params:
        """Score agents' models against their own true values."""
        from equipoise.environments import linear_mdp

        phi = params["phi"]
        truth = self.problem.true_values[ids]
        values = torch.einsum("ksd,kd->ks", phi, params["theta"])
        scores = {
            "error": linear_mdp.value_error(values, truth),
            "visited": linear_mdp.value_error(values, truth, self._occupancy[ids]),
            "subspace": linear_mdp.subspace_distance(phi, self.problem.best_subspace),
        }
        if self.model == "q":
            mdps = {name: stack[ids] for name, stack in self._mdp_stack.items()}
            scores["regret"] = linear_mdp.greedy_regret(mdps, values.reshape(mdps["R"].shape))
        return scores

    def evaluate_server(self, stack: Params, split: str) -> Params:
        """Return the mean scores of each model ``[M, ...]`` over all agents."""
        ids = torch.arange(self.info.num_clients)
        rows = []
        for k in range(len(stack["phi"])):
            repeated = {
                name: value[k].expand(self.info.num_clients, *value.shape[1:])
                for name, value in stack.items()
            }
            rows.append(self.evaluate_stack(ids, repeated, split))
        return {name: torch.stack([row[name].mean() for row in rows]) for name in rows[0]}

    def has_split(self, split: str) -> bool:
        """Return True for "test" alone."""
        return split == "test"

    def summary(self, params: Params) -> State:
        """Return the smallest mean error that any representation of this rank allows."""
        from equipoise.environments.linear_mdp import value_error

        truth = self.problem.true_values
        basis = self.problem.best_subspace
        return {"floor": float(value_error(truth @ basis @ basis.mT, truth).mean())}

    @cached_property
    def _occupancy(self) -> Tensor:
        """Long-run shares of steps under the epsilon-greedy optimal policy, ``[K, S A]``."""
        shares = [
            occupancy(mdp, epsilon_greedy_policy(mdp, self.config.epsilon)).reshape(-1)
            for mdp in self.problem.mdps
        ]
        return torch.from_numpy(np.stack(shares))

    @cached_property
    def _mdp_stack(self) -> dict[str, Tensor]:
        """Arrays of all MDPs, stacked; "best" are the optimal state values."""
        arrays = {
            name: [getattr(mdp, name) for mdp in self.problem.mdps]
            for name in ("P", "R", "discount", "start")
        }
        arrays["best"] = [mdp.q_star.max(axis=1) for mdp in self.problem.mdps]
        return {name: torch.from_numpy(np.stack(values)) for name, values in arrays.items()}
