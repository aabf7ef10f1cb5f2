"""What the deep methods share: which agents they suit, and the rhythm in which body and head learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import (
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


@dataclass(frozen=True)
class DeepQ(Method):
    """``head_steps`` gradient steps of the head under a frozen body, then one of the body under the frozen head.

    In round t the head learns at alpha_t = lr / (1 + t/t0)^(2/3), the body at beta_t = body_rate lr / (1 + t/t0), with
    t0 = ``slow_after``: beta_t / alpha_t -> 0. With ``head_steps`` 0 both move in every step; then methods that know no
    ``two_rates`` move both at alpha_t.
    """

    learner_kind: ClassVar[str] = "deep"
    family: ClassVar[str] = "agents"
    two_rates: ClassVar[bool] = False
    head_steps: int = option(
        0, "steps of the head for each of the body; 0 for both in every step", low=0
    )
    body_rate: float = option(
        1.0, "rate of the body as a share of the head's, at first", above=0, high=1
    )
    slow_after: int = option(
        50, "rounds t0 over which the rates fall, the body's faster; 0 keeps them", low=0
    )

    def check(self, task: Task, training: TrainingConfig) -> None:
        if not isinstance(task, DeepRLTask):
            raise UsageError(
                f"{self.name} trains deep agents, and task '{task.name}' has none: try --task cartpole"
            )
        super().check(task, training)

    def train(self, client: Client) -> tuple[Params, State]:
        time = 1.0 + (client.round - 1) / self.slow_after if self.slow_after else 1.0
        alpha = client.hparams.lr / time ** (2 / 3)
        aux: State = {}
        if self.head_steps:
            aux["head_steps"] = torch.full_like(client.id, self.head_steps)
        if self.head_steps or self.two_rates:
            aux["body_lr"] = self.body_rate * client.hparams.lr / time
        return client.fit(
            client.start, hparams=LocalHParams(client.hparams.epochs, alpha), aux=aux
        ), client.state


@dataclass(frozen=True)
class Dqn(DeepQ):
    """y = r + gamma Q'_i(s', argmax_a Q_i(s', a)); no block travels."""

    name: ClassVar[str] = "dqn"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ()
    needs_previous_model: ClassVar[bool] = True


@dataclass(frozen=True)
class DqnAvg(DeepQ):
    """Q_i <- Q; local DQN; Q <- sum_i Q_i / N. Memory, target net and Adam stay with the agent."""

    name: ClassVar[str] = "dqnavg"


LEAST = 1e-12  # where nobody has learned anything, all weigh the same


@dataclass(frozen=True)
class DqnAvgIm(DqnAvg):
    """theta(p) <- sum_i v_i(p) theta_i(p) / sum_i v_i(p), v_i(p) the mean square of agent i's slopes at parameter p.

    A net has no visit counts, but slopes vanish where an agent's states do not use a parameter. v_i is Adam's own.
    """

    name: ClassVar[str] = "dqnavg-im"
    report_ranges: ClassVar[Mapping[str, ValueRange]] = {"evidence": COUNT}

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        up, state = super().upload(client)
        seen = client.data_state["adam"]["v"]
        return ClientUpdate(
            up.params, {"evidence": {name: seen[name] for name in up.params}}
        ), state

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        evidence = {name: value + LEAST for name, value in updates.extra["evidence"].items()}
        return {name: value / value.sum(0) for name, value in evidence.items()}, server.state


@dataclass(frozen=True)
class PerDqnAvg(DeepQ):
    """Q_i(s, a) = Q([s, e_i], a): Q is averaged, e_i (of size ceil(log2 N)) is learned by agent i alone.

    Each e_i starts at the agent's own draw from U(-1, 1): one net cannot tell agents apart whose inputs are the same.
    """

    name: ClassVar[str] = "perdqnavg"
    model: ClassVar[str] = "embedded"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
    needs_previous_model: ClassVar[bool] = True

    def init_client(self, task: Task, params: Params) -> State:
        return {"began": torch.zeros(())}

    def receive(self, client: Client) -> tuple[Params, State]:
        start = merge_sent_blocks(client)
        own = (2.0 * client.uniform(*start["e"].shape) - 1.0).to(start["e"].dtype)
        start["e"] = torch.where(client.state["began"] > 0, start["e"], own)
        return start, {"began": torch.ones_like(client.state["began"])}

    def check(self, task: Task, training: TrainingConfig) -> None:
        super().check(task, training)
        if isinstance(task, DeepRLTask) and not task.net.embedding:
            raise UsageError(
                "perdqnavg needs a net with an embedding: leave --model out, or set it to embedded"
            )
        if self.head_steps:
            raise UsageError("perdqnavg has no head of its own, so head_steps must be 0")


@dataclass(frozen=True)
class PFedDqnRep(DeepQ):
    """Q_i(s, .) = theta_i Phi(s): theta_i learns at the rate alpha_t, Phi at the slower beta_t; Phi <- sum_i Phi_i / N.

    Both move in every step, or K steps of theta_i under a frozen Phi are followed by one of Phi. Decision 4 is the
    backbone, always.
    """

    name: ClassVar[str] = "pfeddqn-rep"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone",)
    needs_previous_model: ClassVar[bool] = True
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {
        "head_steps": (0, 8),
        "body_rate": (0.1, 1.0),
    }
    two_rates: ClassVar[bool] = True

    def check(self, task: Task, training: TrainingConfig) -> None:
        super().check(task, training)
        if isinstance(task, DeepRLTask) and task.net.embedding:
            raise UsageError(
                "pfeddqn-rep shares the body of a plain net: leave --model out, or set it to mlp"
            )
