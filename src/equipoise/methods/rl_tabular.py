"""Federated Q-learning on tables. A round is one synchronisation period.

FedSynQ and FedAsynQ: Woo et al., "The Blessing of Heterogeneity in Federated Q-Learning: Linear
Speedup and Beyond", ICML 2023 (arXiv:2305.10697). FedDVRQ: Salgia and Chi, "The
Sample-Communication Complexity Trade-off in Federated Q-Learning", NeurIPS 2024 (arXiv:2408.16981).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log1p
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.config.schema import with_default
from equipoise.core import (
    Capabilities,
    Client,
    ClientUpdate,
    LocalHParams,
    Method,
    Options,
    Params,
    Server,
    ServerMessage,
    State,
    Task,
    TrainingConfig,
    ValueRange,
    equal_weights,
    merge_sent_blocks,
    option,
)
from equipoise.core.method import hparams_like
from equipoise.core.report_validation import COUNT
from equipoise.environments import theory
from equipoise.environments.tabular_task import TabularTask
from equipoise.utils import rng
from equipoise.utils.errors import UsageError

REFERENCE_GROWTH = 4
"""Growth of FedDVRQ's reference samples from epoch to epoch: each epoch halves the error."""


@dataclass(frozen=True)
class TabularQ(Method):
    """Base class of methods that learn one table Q `[states, actions]`."""

    family: ClassVar[str] = "agents"
    capabilities: ClassVar[Capabilities] = Capabilities(
        learner_kind="tabular", aggregates_by_sum=True
    )
    eta: float = option(0.05, "learning rate of Q-learning", above=0, below=1)

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse tasks that are not tabular MDPs."""
        if not isinstance(task, TabularTask):
            raise UsageError(
                f"{self.name} learns tables of an MDP, and task '{task.info.name}' has none: "
                "try --task two-state"
            )


@dataclass(frozen=True)
class FederatedQ(TabularQ):
    """Run tau local steps Q <- (1 - eta) Q + eta (r + gamma max_a' Q(s', a')), then combine."""

    capabilities: ClassVar[Capabilities] = replace(TabularQ.capabilities, aggregates_by_sum=False)

    rule: ClassVar[str]
    """How the server combines the tables: equal, importance or targets."""
    samples_all_pairs: ClassVar[bool] = False
    """Whether every step updates all pairs (s, a) from a generative model."""
    report_ranges: ClassVar[Mapping[str, ValueRange]] = {"visits": COUNT}
    eta: float = option(
        0.05,
        "learning rate of Q-learning; auto (or 0) for 14 / ((1 - gamma) mu T) with the run's T "
        "steps",
        low=0,
        below=1,
        auto=True,
    )
    tau: int = option(
        50,
        "local steps between synchronisations; auto (or 0) for the longest period at eta that "
        "keeps agents together (a rule of this project)",
        low=0,
        auto=True,
    )
    steps: int = option(
        0,
        "local steps of an agent in the whole run, a multiple of tau; 0 to follow --rounds",
        low=0,
    )

    def num_rounds(self, requested: int, task: Options) -> int:
        """Return `steps` / tau, or the rounds of the run if `steps` is 0."""
        if not self.steps:
            return requested
        if not self.tau:
            raise UsageError("tau is auto: give the length of the run by --rounds, not --steps")
        if self.steps % self.tau:
            raise UsageError(f"steps is {self.steps}: must be a multiple of tau ({self.tau})")
        return self.steps // self.tau

    def eta_and_tau(self, task: Task, num_rounds: int) -> tuple[float, int]:
        """Return learning rate and period, chosen by the rules of `theory` where they are auto.

        A period that is auto is the longest that `theory.max_tau` allows at eta. If both are auto,
        it is the time in which the slowest agent's trajectory mixes (1 for synchronous sampling),
        and eta follows from the number of steps.

        Args:
            task: The task.
            num_rounds: Rounds of the run.

        Returns:
            eta and tau.
        """
        assert isinstance(task, TabularTask)  # `check` refuses others
        gamma = task.mdp.gamma
        if self.eta and self.tau:
            return self.eta, self.tau
        if self.eta:
            return self.eta, theory.max_tau(self.eta, gamma, task.info.num_clients)
        cover = self._coverage(task)
        tau = self.tau
        if not tau:
            tau = 1 if cover is None else max(1, math.ceil(cover.t_mix))
        mu = 1.0 if cover is None else cover.mu_avg
        return theory.best_eta(gamma, num_rounds * tau, mu), tau

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse tasks that are no MDP, and an automatic eta where no rule has an answer."""
        super().check(task, training)
        assert isinstance(task, TabularTask)
        cover = self._coverage(task) if not self.eta else None
        if cover is None:
            return
        if cover.mu_avg == 0.0 or not math.isfinite(cover.t_mix):
            raise UsageError(
                "eta is auto, and the rule has no answer: the agents together miss some "
                "state-action pairs, or an agent's trajectory never mixes; give --eta a number"
            )

    def warnings(self, task: Task, num_rounds: int) -> tuple[str, ...]:
        """Name the rules on tau and on the number of steps that the run violates."""
        assert isinstance(task, TabularTask)
        eta, tau = self.eta_and_tau(task, num_rounds)
        chosen = []
        if not (self.eta and self.tau):
            chosen.append(f"chosen: eta {eta:.4g}, tau {tau}")
        cover = self._coverage(task)
        sentences = theory.condition_warnings(
            eta, tau, num_rounds * tau, task.mdp.gamma, task.info.num_clients, cover
        )
        return (*chosen, *sentences)

    def _coverage(self, task: TabularTask) -> theory.Coverage | None:
        """Return the agents' coverage; None where every step samples all pairs."""
        return None if self.samples_all_pairs else task.coverage

    def receive(self, client: Client) -> tuple[Params, State]:
        """Take the received table, or a random one in round 1 if the task asks for it."""
        task = client.task
        start = merge_sent_blocks(client)
        if client.round == 1 and isinstance(task, TabularTask) and task.config.random_q0:
            from equipoise.environments.tabular_q import random_q_entries

            draws = client.uniform(*start["q"].shape, stream=rng.FIRST_TABLES)
            start = {"q": random_q_entries(draws, task.mdp.gamma)}
        return start, client.state

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        """Train for tau steps at rate eta."""
        eta, tau = self.eta_and_tau(client.task, client.num_rounds)
        return _hparams(client, tau, eta), client.state

    def allowed_hparams(
        self, task: Task, proposed: LocalHParams, round: int, num_rounds: int, server_chose: bool
    ) -> tuple[LocalHParams, LocalHParams]:
        """Allow what `configure_training` computes, and nothing else."""
        eta, tau = self.eta_and_tau(task, num_rounds)
        exact = hparams_like(proposed, tau, eta)
        return exact, exact

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        """Combine the tables entry by entry; agents that report no visits count equally."""
        from equipoise.environments.tabular_q import average_tables

        tables = updates.params["q"].contiguous().numpy()
        visits = updates.extra["visits"].contiguous().numpy() if updates.extra else tables
        global_table = server.params["q"].contiguous().numpy()
        eta, _ = self.eta_and_tau(server.task, server.num_rounds)
        table = average_tables(self.rule, tables, visits, global_table, eta)
        return {"q": torch.from_numpy(table)}, server.state


@dataclass(frozen=True)
class FedSynQ(FederatedQ):
    """Update all pairs (s, a) in every step from a generative model; average every tau steps."""

    name: ClassVar[str] = "fedsynq"
    rule: ClassVar[str] = "equal"
    samples_all_pairs: ClassVar[bool] = True
    tau: int = with_default(FederatedQ, "tau", 5)

    def train(self, client: Client) -> tuple[Params, State]:
        """Run tau synchronous steps."""
        synchronous = {"synchronous": torch.ones_like(client.id)}
        return client.fit(client.start, aux=synchronous), client.state


@dataclass(frozen=True)
class FedAsynQEq(FederatedQ):
    """Update only the visited pair of a trajectory; Q <- mean_k Q^k (EqAvg)."""

    name: ClassVar[str] = "fedasynq-eq"
    rule: ClassVar[str] = "equal"
    eta: float = with_default(FederatedQ, "eta", 0.2)


@dataclass(frozen=True)
class FedAsynQIm(FederatedQ):
    """Average with importance weights: Q(s, a) <- sum_k alpha^k(s, a) Q^k(s, a) (ImAvg).

    alpha^k(s, a) is proportional to (1 - eta)^(-N^k(s, a)), with N^k the agent's visit counts.
    """

    name: ClassVar[str] = "fedasynq-im"
    rule: ClassVar[str] = "importance"

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Send the table and the visit counts."""
        visits = client.data_state["visits"]
        return ClientUpdate({"q": client.trained["q"]}, {"visits": visits}), client.state


@dataclass(frozen=True)
class FedAsynQTa(FederatedQ):
    """Average the agents' targets instead of their tables (a method of this project).

    An agent's table is d Q_start + (1 - d) T with d = (1 - eta)^N, where T is the mean of its
    targets. The server moves its table towards the mean of the T with weights (1 - d) / (1 + d).
    """

    name: ClassVar[str] = "fedasynq-ta"
    rule: ClassVar[str] = "targets"
    eta: float = with_default(FederatedQ, "eta", 0.005)

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Send (1 - d) T and the visit counts N."""
        visits = client.data_state["visits"]
        eta, _ = self.eta_and_tau(client.task, client.num_rounds)
        d = torch.exp(log1p(-eta) * visits.double())
        weighted_targets = client.trained["q"] - d * client.start["q"]
        return ClientUpdate({"q": weighted_targets}, {"visits": visits}), client.state


@dataclass(frozen=True)
class FedDVRQ(TabularQ):
    """Run variance-reduced Q-learning in epochs of `iterations` rounds.

    R is the server's table at the start of epoch k. In the first round of the epoch agent m
    estimates T^m(R) from 4^(k-1) `reference_batch` samples of each pair, and the server computes
    T_R = mean_m T^m(R) and Q <- Q + eta (T_R - Q). In the others
    Q <- mean_m (1 - eta) Q + eta (T^m(Q) - T^m(R) + T_R), with T^m from the same `batch` samples
    for Q and R.

    The server state holds R (`reference`) and T_R (`target`).
    """

    name: ClassVar[str] = "feddvrq"
    capabilities: ClassVar[Capabilities] = replace(
        TabularQ.capabilities, needs_common_start=True, aggregates_by_sum=True
    )
    eta: float = with_default(TabularQ, "eta", 0.8)
    iterations: int = option(
        25, "rounds of an epoch; about 2 / (eta (1 - gamma)) are enough", low=1
    )
    batch: int = option(8, "samples of each state-action pair by each agent in a round", low=1)
    reference_batch: int = option(
        32, "samples of each pair for the first reference; 4 times as many in each epoch", low=1
    )

    # --- client -----------------------------------------------------------------------------

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        """Set the number of samples of each pair."""
        return _hparams(client, self._num_samples(client.round), self.eta), client.state

    def allowed_hparams(
        self, task: Task, proposed: LocalHParams, round: int, num_rounds: int, server_chose: bool
    ) -> tuple[LocalHParams, LocalHParams]:
        """Allow what `configure_training` computes, and nothing else."""
        exact = hparams_like(proposed, self._num_samples(round), self.eta)
        return exact, exact

    def _num_samples(self, round: int) -> int:
        """Return the samples of each pair; the first round of an epoch has more."""
        if not self._starts_epoch(round):
            return self.batch
        return self.reference_batch * int(REFERENCE_GROWTH ** ((round - 1) // self.iterations))

    def train(self, client: Client) -> tuple[Params, State]:
        """Estimate the target T^m and take one step of size eta towards it."""
        known = client.message.broadcast
        aux = {"backup": torch.ones_like(client.id)}
        if self._starts_epoch(client.round):
            target = client.fit(client.start, aux=aux)["q"]
        else:
            aux["reference"] = known["reference"]
            target = client.fit(client.start, aux=aux)["q"] + known["target"]
        return {"q": (1 - self.eta) * client.start["q"] + self.eta * target}, client.state

    # --- server -----------------------------------------------------------------------------

    def init_server(self, task: Task, params: Params) -> State:
        """Start with the initial table as reference and target."""
        return {"reference": params["q"], "target": params["q"]}

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Send the table, and within an epoch also R and T_R."""
        message, state = super().distribute(server, ids)
        if self._starts_epoch(server.round):
            return message, state
        return replace(message, broadcast=dict(state)), state

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        """Weight all agents equally."""
        return equal_weights(ids), server.state

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """Average the tables; after an epoch's first round also compute T_R from the mean."""
        q = server.params["q"]
        mean = sums["mean"]["q"]
        if not self._starts_epoch(server.round):
            return {"q": mean}, server.state
        return {"q": mean}, {"reference": q, "target": q + (mean - q) / self.eta}

    def _starts_epoch(self, round: int) -> bool:
        """Return whether a round is the first of its epoch."""
        return (round - 1) % self.iterations == 0


def _hparams(client: Client, steps: int, lr: float) -> LocalHParams:
    """Return a number of steps (or samples) and a learning rate for this client."""
    return LocalHParams(
        torch.full_like(client.id, steps), torch.full_like(client.id, lr, dtype=torch.float64)
    )
