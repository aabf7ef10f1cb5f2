"""Federated tabular Q-learning as a task: every client is an agent with its own table.

`fit` takes `epochs` as local steps and `lr` as the learning rate eta. All simulations of a run are
one model q ``[sims, S, A]`` in float64; they share nothing but the settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

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
from equipoise.environments.tabular_mdp import (
    BEHAVIOURS,
    DEFAULT_GAMMA,
    Floats,
    TabularMDP,
    behaviour_policies,
    make_mdp,
    perturb,
)
from equipoise.environments.theory import Coverage, coverage, occupancy
from equipoise.utils.errors import UsageError

if TYPE_CHECKING:
    from equipoise.environments.tabular_q import TabularProblem


@dataclass(frozen=True)
class TabularConfig(Options):
    """Options that every tabular task shares."""

    agents: int = option(20, "agents (clients)", low=1)
    sims: int = option(100, "independent simulations, side by side in one run", low=1)
    gamma: float = option(DEFAULT_GAMMA, "discount of a later reward", above=0, below=1)
    behaviour: str = option("epsilon", "how agents behave", choices=BEHAVIOURS)
    epsilon: float = option(
        0.5,
        "behaviour epsilon: chance of a random action instead of the agent's own one",
        low=0,
        high=1,
    )
    perturbation: float = option(
        0.0, "how far each agent's MDP is moved from the common one", low=0, high=1
    )
    random_q0: bool = option(False, "start each agent from its own random table instead of zero")


class TabularTask(RLTask):
    """Tabular agents. Scores are means over simulations.

    - `error`: (1 - gamma) max |Q - Q*|;
    - `visited`: (1 - gamma) times the mean of |Q - Q*| over the steps of a long trajectory under
      the agent's policy (for the server: under all agents' policies).

    A client's Q* is that of its own MDP, the server's that of the mean MDP; without perturbation
    they are the same.

    Numba is optional: `tabular_q` is imported only where it is used.
    """

    suggested_method = "fedasynq-im"

    def __init__(
        self, name: str, mdp: TabularMDP, config: TabularConfig, training: TrainingConfig, seed: int
    ) -> None:
        """Create the task.

        Args:
            name: Name of the task.
            mdp: The common MDP, before perturbation.
            config: Options of the agents.
            training: Defaults of local training.
            seed: Seed of perturbations and initial states.
        """
        self.config = config
        self.seed = seed
        self.info = TaskInfo(
            name,
            config.agents,
            {"backbone": ("q",), "head": ()},
            training,
            learner_kind="tabular",
            metric="error",
            higher_is_better=False,
        )
        self.policies = behaviour_policies(config.behaviour, mdp, config.agents, config.epsilon)
        self.mdps = [mdp]
        if config.perturbation:
            self.mdps = [
                perturb(mdp, seed * config.agents + k, config.perturbation)
                for k in range(config.agents)
            ]
        self.mdp = self.mdps[0] if len(self.mdps) == 1 else _mean_mdp(self.mdps)

    @cached_property
    def trajectory_problem(self) -> TabularProblem:
        """Agents that follow their own trajectories."""
        from equipoise.environments.tabular_q import TabularProblem

        return TabularProblem(self.mdps, self.info.num_clients, self.policies)

    @cached_property
    def generative_problem(self) -> TabularProblem:
        """Agents that sample every state-action pair from a generative model (FedSynQ)."""
        from equipoise.environments.tabular_q import TabularProblem

        return TabularProblem(self.mdps, self.info.num_clients)

    def init_params(self, seed: int) -> Params:
        """Return the mean of the agents' initial tables, ``[sims, S, A]``."""
        from equipoise.environments.tabular_q import initial_q

        problem = self.trajectory_problem
        tables = initial_q(problem, self.config.sims, seed, self.config.random_q0)
        return {"q": torch.from_numpy(tables.mean(axis=0))}

    def init_data_state(self, ids: Tensor) -> State:
        """Return positions, steps taken and visit counts of agents that have not acted."""
        from equipoise.environments.tabular_q import initial_states

        positions = initial_states(self.trajectory_problem, self.config.sims, self.seed)
        shape = (len(ids), self.config.sims, self.mdp.num_states, self.mdp.num_actions)
        return {
            "position": torch.from_numpy(positions)[ids],
            "taken": torch.zeros_like(ids),
            "visits": torch.zeros(shape, dtype=torch.int64),
        }

    def fit_stack(
        self, ids: Tensor, request: LocalTrainRequest, data_state: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """Continue the agents' trajectories; the new state holds the visits of this call.

        With "synchronous" in ``aux`` agents sample a generative model; with "backup" see
        `_sampled_backup`.

        Raises:
            UsageError: If the request has a loss.
        """
        from equipoise.environments import tabular_q

        if request.proximal or request.grad_correction or request.loss:
            raise UsageError(
                f"task '{self.info.name}' updates tables, not a loss: "
                "choose a method without a loss of its own"
            )
        tabular_q.set_num_threads(torch.get_num_threads())
        if "backup" in request.aux:
            return self._sampled_backup(ids, request, data_state, rng)
        synchronous = "synchronous" in request.aux
        problem = self.generative_problem if synchronous else self.trajectory_problem
        q = request.params["q"].contiguous().clone().numpy()
        position = data_state["position"].contiguous().clone().numpy()
        visits = np.zeros(q.shape, np.int64)
        steps = request.epochs.numpy()
        rates = request.lr.numpy()
        agents = ids.numpy()
        taken = data_state["taken"].numpy()
        # The kernels take one number of steps and one rate: one call per distinct pair.
        for tau, eta in sorted(set(zip(steps.tolist(), rates.tolist(), strict=True))):
            tabular_q.check_step_options(eta, tau)
            rows = np.flatnonzero((steps == tau) & (rates == eta))
            if len(rows) == len(agents):  # no copies in the usual case
                tabular_q.advance(problem, agents, q, visits, position, taken, rng.seed, eta, tau)
                break
            group = (q[rows], visits[rows], position[rows])
            tabular_q.advance(problem, agents[rows], *group, taken[rows], rng.seed, eta, tau)
            q[rows], visits[rows], position[rows] = group
        after = {
            "position": torch.from_numpy(position),
            "taken": torch.from_numpy(taken + steps),
            "visits": torch.from_numpy(visits),
        }
        return {"q": torch.from_numpy(q)}, {}, after

    def _sampled_backup(
        self, ids: Tensor, request: LocalTrainRequest, data_state: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """Compute one Bellman backup of the table from `epochs` samples of each pair.

        With "reference" in ``aux`` the backup of that table, from the same samples, is subtracted.
        """
        from equipoise.environments.tabular_q import sampled_backup

        tables = [request.params["q"]]
        if "reference" in request.aux:
            tables.append(request.aux["reference"])
        stacks = [table.contiguous().numpy() for table in tables]
        taken = data_state["taken"].numpy()
        backup = np.empty_like(stacks[0])
        for samples in sorted(set(request.epochs.tolist())):
            rows = np.flatnonzero(request.epochs.numpy() == samples)
            backup[rows] = sampled_backup(
                self.generative_problem,
                ids.numpy()[rows],
                [stack[rows] for stack in stacks],
                taken[rows],
                rng.seed,
                samples,
            )
        after = data_state | {"taken": data_state["taken"] + request.epochs}
        return {"q": torch.from_numpy(backup)}, {}, after

    def evaluate_stack(self, ids: Tensor, params: Params, split: str) -> Params:
        """Score agents' tables ``[K, sims, S, A]`` against their own Q*."""
        q_star = self._q_stars[ids] if len(self.mdps) > 1 else self._q_stars
        return self._scores(params["q"], q_star[:, None], self._occupancy[ids][:, None])

    def evaluate_server(self, stack: Params, split: str) -> Params:
        """Score tables ``[M, sims, S, A]`` against the Q* of the mean MDP."""
        q_star = torch.from_numpy(self.mdp.q_star)
        return self._scores(stack["q"], q_star, self._occupancy.mean(0))

    def has_split(self, split: str) -> bool:
        """Return True for "test" alone."""
        return split == "test"

    def summary(self, params: Params) -> State:
        """Return the final error over simulations and the coverage that the theory depends on."""
        errors = self._max_errors(params["q"], torch.from_numpy(self.mdp.q_star))
        cover = self.coverage
        return {
            "error": float(errors.mean()),
            "error_std": float(errors.std(correction=0)),
            "coverage": {
                "mu_min": cover.mu_min,
                "mu_avg": cover.mu_avg,
                "c_het": cover.c_het,
                "t_mix": cover.t_mix if np.isfinite(cover.t_mix) else None,
            },
        }

    @cached_property
    def coverage(self) -> Coverage:
        """How the agents' trajectories cover the state-action space."""
        return coverage(self.mdp, self.policies)

    @cached_property
    def _q_stars(self) -> Tensor:
        """Q* of each MDP, ``[1 or K, S, A]``."""
        return torch.from_numpy(np.stack([mdp.q_star for mdp in self.mdps]))

    @cached_property
    def _occupancy(self) -> Tensor:
        """Each agent's long-run shares of steps, ``[K, S, A]``; equal agents share one result."""
        mdps = self.mdps * self.info.num_clients if len(self.mdps) == 1 else self.mdps
        cache: dict[tuple[int, bytes], Floats] = {}
        shares = []
        for mdp, policy in zip(mdps, self.policies, strict=True):
            key = (id(mdp), policy.tobytes())
            if key not in cache:
                cache[key] = occupancy(mdp, policy)
            shares.append(cache[key])
        return torch.from_numpy(np.stack(shares))

    def _max_errors(self, q: Tensor, q_star: Tensor) -> Tensor:
        """Return (1 - gamma) max |Q - Q*|."""
        return (1.0 - self.mdp.gamma) * (q - q_star).abs().amax(dim=(-2, -1))

    def _scores(self, q: Tensor, q_star: Tensor, visits: Tensor) -> Params:
        """Return means over simulations of the largest error and of the visited error."""
        visited = (1.0 - self.mdp.gamma) * (visits * (q - q_star).abs()).sum((-2, -1))
        return {
            "error": self._max_errors(q, q_star).mean(dim=-1),
            "visited": visited.mean(dim=-1),
        }


def _mean_mdp(mdps: list[TabularMDP]) -> TabularMDP:
    """Return the MDP with mean transitions and rewards."""
    first = mdps[0]
    return make_mdp(
        np.mean([mdp.P for mdp in mdps], axis=0),
        np.mean([mdp.R for mdp in mdps], axis=0),
        first.gamma,
        first.start,
        first.discount == 0.0,
        name=f"{first.name}, mean",
    )
