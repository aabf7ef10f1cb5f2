"""Federated tabular Q-learning as a task: every client is an agent with a table of its own."""

from __future__ import annotations

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
from equipoise.environments.agent_task import Agents
from equipoise.environments.tabular_mdp import (
    DEFAULT_GAMMA,
    POLICIES,
    Floats,
    TabularMDP,
    behaviour,
    make_mdp,
    perturbed,
)
from equipoise.environments.theory import coverage
from equipoise.utils.errors import UsageError

if TYPE_CHECKING:
    from equipoise.environments.tabular_q import Problem


@dataclass(frozen=True)
class TabularConfig(Options):
    """Options that every tabular task shares."""

    agents: int = option(20, "agents (clients)", low=1)
    sims: int = option(100, "independent simulations, side by side in one run", low=1)
    gamma: float = option(DEFAULT_GAMMA, "discount of a later reward", above=0, below=1)
    behaviour: str = option("epsilon", "how agents behave", choices=POLICIES)
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


class TabularTask(Agents):
    """Scores, means over simulations: `error` is (1 - gamma) max |Q - Q*|, `visited` (1 - gamma) times the mean of

    |Q - Q*| over the steps of a long trajectory under the agent's policy (the server's: under all of them).

    A client's Q* is that of its own MDP, the server's that of the mean MDP; without perturbation they are the same.
    """

    learner_kind: ClassVar[str] = "tabular"
    metric = "error"
    higher_is_better = False

    def __init__(
        self, name: str, mdp: TabularMDP, config: TabularConfig, training: TrainingConfig, seed: int
    ) -> None:
        self.name, self.config, self.training, self.seed = name, config, training, seed
        self.num_clients, self.blocks = config.agents, {"backbone": ("q",), "head": ()}
        self.policies = behaviour(config.behaviour, mdp, config.agents, config.epsilon)
        self.mdps = [mdp]
        if config.perturbation:
            self.mdps = [
                perturbed(mdp, seed * config.agents + k, config.perturbation)
                for k in range(config.agents)
            ]
        self.mdp = mdp if len(self.mdps) == 1 else _mean(self.mdps)

    @cached_property
    def walks(self) -> Problem:
        """Agents on their own trajectories."""
        from equipoise.environments.tabular_q import Problem

        return Problem(self.mdps, self.num_clients, self.policies)

    @cached_property
    def sweeps(self) -> Problem:
        """Agents that sample every state-action pair from a generative model (FedSynQ)."""
        from equipoise.environments.tabular_q import Problem

        return Problem(self.mdps, self.num_clients)

    def init_params(self, seed: int) -> Params:
        from equipoise.environments.tabular_q import initial_tables

        tables = initial_tables(self.walks, self.config.sims, seed, self.config.random_q0)
        return {"q": torch.from_numpy(tables.mean(axis=0))}

    def init_data_state(self, ids: Tensor) -> State:
        from equipoise.environments.tabular_q import start_positions

        position = torch.from_numpy(start_positions(self.walks, self.config.sims, self.seed))[ids]
        shape = (len(ids), self.config.sims, self.mdp.states, self.mdp.actions)
        return {
            "position": position,
            "taken": torch.zeros_like(ids),
            "visits": torch.zeros(shape, dtype=torch.int64),
        }

    def check_method(self, method: Method) -> None:
        """Tables have no loss: a method that trains, or decides how to train, by one cannot work."""
        if (
            method.overridden_hooks & {"train", "configure_training"}
            and method.learner_kind != self.learner_kind
        ):
            raise UsageError(
                f"{method.name} trains on a loss, and task '{self.name}' has none: try fedasynq-im"
            )

    def fit_stack(
        self, ids: Tensor, request: LocalTrainRequest, source: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """Trajectories go on from `source`, which also gives back the visits of this call."""
        from equipoise.environments import tabular_q

        if request.proximal or request.grad_correction or request.loss:
            raise UsageError(
                f"task '{self.name}' updates tables, not a loss: choose a method without a loss of its own"
            )
        tabular_q.use_threads(torch.get_num_threads())
        if "backup" in request.aux:
            return self._back_up(ids, request, source, rng)
        problem = self.sweeps if "synchronous" in request.aux else self.walks
        q, position = (
            value.contiguous().clone().numpy()
            for value in (request.params["q"], source["position"])
        )
        visits = np.zeros(q.shape, np.int64)
        steps, rates, agents, taken = (
            value.numpy() for value in (request.epochs, request.lr, ids, source["taken"])
        )
        for tau, eta in sorted(set(zip(steps.tolist(), rates.tolist(), strict=True))):
            tabular_q.check_rates(eta, tau)
            who = np.flatnonzero((steps == tau) & (rates == eta))
            if len(who) == len(agents):
                tabular_q.advance(problem, agents, q, visits, position, taken, rng.seed, eta, tau)
                break
            some, seen, at = q[who], visits[who], position[who]
            tabular_q.advance(problem, agents[who], some, seen, at, taken[who], rng.seed, eta, tau)
            q[who], visits[who], position[who] = some, seen, at
        after = {"position": position, "taken": taken + steps, "visits": visits}
        return (
            {"q": torch.from_numpy(q)},
            {},
            {name: torch.from_numpy(value) for name, value in after.items()},
        )

    def _back_up(
        self, ids: Tensor, request: LocalTrainRequest, source: State, rng: RngContext
    ) -> tuple[Params, Params, State]:
        """No steps: one backup of the table, less that of ``reference`` where given; `epochs` samples of each pair."""
        from equipoise.environments.tabular_q import sampled_backup

        tables = [
            request.params["q"],
            *(request.aux[name] for name in ("reference",) if name in request.aux),
        ]
        stacks, taken = [table.contiguous().numpy() for table in tables], source["taken"].numpy()
        found = np.empty_like(stacks[0])
        for samples in sorted(set(request.epochs.tolist())):
            who = np.flatnonzero(request.epochs.numpy() == samples)
            own = [stack[who] for stack in stacks]
            found[who] = sampled_backup(
                self.sweeps, ids.numpy()[who], own, taken[who], rng.seed, samples
            )
        return (
            {"q": torch.from_numpy(found)},
            {},
            source | {"taken": source["taken"] + request.epochs},
        )

    def evaluate_stack(self, ids: Tensor, params: Params, split: str) -> Params:
        own = self._q_stars[ids] if len(self.mdps) > 1 else self._q_stars
        return self._scores(params["q"], own[:, None], self._visits[ids][:, None])

    def evaluate_server(self, stack: Params, split: str) -> Params:
        return self._scores(stack["q"], torch.from_numpy(self.mdp.q_star), self._visits.mean(0))

    def has_split(self, split: str) -> bool:
        return split == "test"

    def summary(self, params: Params) -> State:
        """The yardstick of the final table, and what the theory says of these agents."""
        gaps = self._gaps(params["q"], torch.from_numpy(self.mdp.q_star))
        cover = coverage(self.mdp, self.policies)
        return {
            "error": float(gaps.mean()),
            "error_std": float(gaps.std(correction=0)),
            "coverage": {
                "mu_min": cover.mu_min,
                "mu_avg": cover.mu_avg,
                "c_het": cover.c_het,
                "t_mix": cover.t_mix if np.isfinite(cover.t_mix) else None,
            },
        }

    @cached_property
    def _q_stars(self) -> Tensor:
        return torch.from_numpy(np.stack([mdp.q_star for mdp in self.mdps]))

    def _gaps(self, q: Tensor, q_star: Tensor) -> Tensor:
        return (1.0 - self.mdp.gamma) * (q - q_star).abs().amax(dim=(-2, -1))

    @cached_property
    def _visits(self) -> Tensor:
        """Each agent's long-run shares of steps, ``[K, S, A]``."""
        from equipoise.environments.theory import occupancy

        mdps = self.mdps * self.num_clients if len(self.mdps) == 1 else self.mdps
        known: dict[tuple[int, bytes], Floats] = {}
        for mdp, policy in zip(mdps, self.policies, strict=True):
            if (id(mdp), policy.tobytes()) not in known:
                known[id(mdp), policy.tobytes()] = occupancy(mdp, policy)
        each = [
            known[id(mdp), policy.tobytes()]
            for mdp, policy in zip(mdps, self.policies, strict=True)
        ]
        return torch.from_numpy(np.stack(each))

    def _scores(self, q: Tensor, q_star: Tensor, visits: Tensor) -> Params:
        """Means over simulations of the largest gap, and of the mean gap over the steps of those who act."""
        mean = (1.0 - self.mdp.gamma) * (visits * (q - q_star).abs()).sum((-2, -1))
        return {"error": self._gaps(q, q_star).mean(dim=-1), "visited": mean.mean(dim=-1)}


def _mean(mdps: list[TabularMDP]) -> TabularMDP:
    def average(arrays: list[Floats]) -> Floats:
        return np.asarray(np.mean(arrays, axis=0))

    first = mdps[0]
    P, R = average([mdp.P for mdp in mdps]), average([mdp.R for mdp in mdps])
    return make_mdp(
        P, R, first.gamma, first.start, first.discount == 0.0, name=f"{first.name}, mean"
    )
