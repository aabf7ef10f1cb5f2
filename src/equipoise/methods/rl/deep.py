"""What the deep methods share: which agents they suit, and the rhythm in which body and head learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from equipoise.contract import Client, Method, State, Task, LocalHParams, TrainingConfig, Params, option
from equipoise.core.errors import UsageError
from equipoise.frl.deep.task import AgentTask


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
    head_steps: int = option(0, "steps of the head for each of the body; 0 for both in every step", low=0)
    body_rate: float = option(1.0, "rate of the body as a share of the head's, at first", above=0, high=1)
    slow_after: int = option(50, "rounds t0 over which the rates fall, the body's faster; 0 keeps them", low=0)

    def check(self, task: Task, training: TrainingConfig) -> None:
        if not isinstance(task, AgentTask):
            raise UsageError(f"{self.name} trains deep agents, and task '{task.name}' has none: try --task cartpole")
        super().check(task, training)

    def train(self, client: Client) -> tuple[Params, State]:
        time = 1.0 + (client.round - 1) / self.slow_after if self.slow_after else 1.0
        alpha = client.hparams.lr / time ** (2 / 3)
        aux: State = {}
        if self.head_steps:
            aux["head_steps"] = torch.full_like(client.id, self.head_steps)
        if self.head_steps or self.two_rates:
            aux["body_lr"] = self.body_rate * client.hparams.lr / time
        return client.fit(client.start, hparams=LocalHParams(client.hparams.epochs, alpha), aux=aux), client.state
