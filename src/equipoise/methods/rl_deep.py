"""Federated deep Q-learning: DQN agents that share all, some or none of their networks.

PFedDQN-Rep: "On the Linear Speedup of Personalized Federated Reinforcement Learning with Shared
Representations" (arXiv:2411.15014). PerDQNAvg: Jin et al., "Federated Reinforcement Learning with
Environment Heterogeneity", AISTATS 2022 (arXiv:2204.02634). DQNAvg-Im is a method of this project.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import (
    Capabilities,
    Client,
    ClientUpdate,
    LocalHParams,
    Method,
    Params,
    Server,
    State,
    Task,
    TrainingConfig,
    ValueRange,
    merge_sent_blocks,
    option,
)
from equipoise.core.report_validation import COUNT
from equipoise.environments.deep_task import DeepRLTask
from equipoise.utils.errors import UsageError

MIN_EVIDENCE = 1e-12
"""Added to the evidence of every agent, so that agents without gradients count equally."""


@dataclass(frozen=True)
class DeepQ(Method):
    """Take `head_steps` gradient steps on the head with a frozen body, then one on the body.

    In round t the head learns at alpha_t = lr / (1 + t/t0)^(2/3) and the body at
    beta_t = body_rate lr / (1 + t/t0) with t0 = `slow_after`, so that beta_t / alpha_t -> 0. If
    `head_steps` is 0 both move in every step; then methods without `two_rates` move both at
    alpha_t.
    """

    family: ClassVar[str] = "agents"
    capabilities: ClassVar[Capabilities] = Capabilities(learner_kind="deep", aggregates_by_sum=True)
    two_rates: ClassVar[bool] = False
    """Whether the body has its own rate also when both move in every step."""
    head_steps: int = option(
        0, "steps on the head for each step on the body; 0 for both in every step", low=0
    )
    body_rate: float = option(
        1.0, "initial learning rate of the body as a share of the head's", above=0, high=1
    )
    slow_after: int = option(
        50, "time scale t0 in rounds of the decay of the rates; 0 for constant rates", low=0
    )

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse tasks without deep agents."""
        if not isinstance(task, DeepRLTask):
            raise UsageError(
                f"{self.name} trains deep agents, and task '{task.info.name}' has none: "
                "try --task cartpole"
            )
        super().check(task, training)

    def train(self, client: Client) -> tuple[Params, State]:
        """Train the agent at this round's rates."""
        lr = client.hparams.lr
        decay = 1.0
        if self.slow_after:
            decay = 1.0 + (client.round - 1) / self.slow_after
        aux: State = {}
        if self.head_steps:
            aux["head_steps"] = torch.full_like(client.id, self.head_steps)
        if self.head_steps or self.two_rates:
            aux["body_lr"] = self.body_rate * lr / decay
        hparams = LocalHParams(client.hparams.epochs, lr / decay ** (2 / 3))
        return client.fit(client.start, hparams=hparams, aux=aux), client.state


@dataclass(frozen=True)
class Dqn(DeepQ):
    """Double DQN at every agent, y = r + gamma Q'_i(s', argmax_a Q_i(s', a)); nothing is shared."""

    name: ClassVar[str] = "dqn"
    capabilities: ClassVar[Capabilities] = replace(DeepQ.capabilities, needs_previous_model=True)
    default_shared_blocks: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class DqnAvg(DeepQ):
    """Average the networks: Q <- sum_i Q_i / N.

    Replay buffer, target network and Adam's moments stay with the agent.
    """

    name: ClassVar[str] = "dqnavg"


@dataclass(frozen=True)
class DqnAvgIm(DqnAvg):
    """Weight every parameter by evidence: theta(p) <- sum_i v_i(p) theta_i(p) / sum_i v_i(p).

    v_i(p) is the mean square of agent i's gradients at parameter p, Adam's second moment. It takes
    the place of the visit counts of tables: gradients vanish where an agent's states do not use a
    parameter.
    """

    name: ClassVar[str] = "dqnavg-im"
    capabilities: ClassVar[Capabilities] = replace(DqnAvg.capabilities, aggregates_by_sum=False)
    report_ranges: ClassVar[Mapping[str, ValueRange]] = {"evidence": COUNT}

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Send the network and Adam's second moments."""
        update, state = super().upload(client)
        second_moments = client.data_state["adam"]["v"]
        evidence = {name: second_moments[name] for name in update.params}
        return ClientUpdate(update.params, {"evidence": evidence}), state

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        """Return weights `[K, ...]` per parameter, proportional to the evidence."""
        weights: Params = {}
        for name, value in updates.extra["evidence"].items():
            evidence = value + MIN_EVIDENCE
            weights[name] = evidence / evidence.sum(0)
        return weights, server.state


@dataclass(frozen=True)
class PerDqnAvg(DeepQ):
    """Average Q in Q_i(s, a) = Q([s, e_i], a); agent i learns its embedding e_i alone.

    e_i has ceil(log2 N) entries and starts at the agent's own draw from U(-1, 1), because one
    network cannot tell agents with equal inputs apart. The client state says whether e_i has
    been drawn.
    """

    name: ClassVar[str] = "perdqnavg"
    capabilities: ClassVar[Capabilities] = replace(DeepQ.capabilities, needs_previous_model=True)
    model: ClassVar[str] = "embedded"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse a network without an embedding, and separate steps on the head."""
        super().check(task, training)
        if isinstance(task, DeepRLTask) and not task.net.embedding:
            raise UsageError(
                "perdqnavg needs a net with an embedding: leave --model out, or set it to embedded"
            )
        if self.head_steps:
            raise UsageError("perdqnavg has no head of its own, so head_steps must be 0")

    def init_client(self, task: Task, params: Params) -> State:
        """Start without an embedding."""
        return {"has_embedding": torch.zeros(())}

    def receive(self, client: Client) -> tuple[Params, State]:
        """Take the received network; draw e_i the first time."""
        start = merge_sent_blocks(client)
        has_embedding = client.state["has_embedding"]
        noise = (2.0 * client.uniform(*start["e"].shape) - 1.0).to(start["e"].dtype)
        start["e"] = torch.where(has_embedding > 0, start["e"], noise)
        return start, {"has_embedding": torch.ones_like(has_embedding)}


@dataclass(frozen=True)
class PFedDqnRep(DeepQ):
    """Share the representation Phi in Q_i(s, .) = theta_i Phi(s): Phi <- sum_i Phi_i / N.

    theta_i learns at rate alpha_t and Phi at the slower beta_t. Both move in every step, or
    `head_steps` steps on theta_i under a frozen Phi are followed by one on Phi.
    """

    name: ClassVar[str] = "pfeddqn-rep"
    capabilities: ClassVar[Capabilities] = replace(DeepQ.capabilities, needs_previous_model=True)
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {
        "head_steps": (0, 8),
        "body_rate": (0.1, 1.0),
    }
    two_rates: ClassVar[bool] = True

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse a network with an embedding."""
        super().check(task, training)
        if isinstance(task, DeepRLTask) and task.net.embedding:
            raise UsageError(
                "pfeddqn-rep shares the body of a plain net: leave --model out, or set it to mlp"
            )
