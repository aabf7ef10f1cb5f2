"""Dap-FL (Chen et al., 2023): a DDPG agent at each client chooses epochs and rate; the server averages by data size."""

from __future__ import annotations

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
    State,
    Task,
    TrainingConfig,
    option,
)
from equipoise.methods.page import agents
from equipoise.methods.page.config import epochs_of, rate_of
from equipoise.rl.ddpg import Config
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class DapFL(Method):
    """State: loss and accuracy of the received model. Reward: what training improves of both, added up."""

    name: ClassVar[str] = "dapfl"
    family: ClassVar[str] = "controller"
    epochs_most: int = option(20, "largest number of epochs that an agent may choose", low=1)
    lr_low: float = option(1e-4, "smallest rate that an agent may choose", above=0)
    lr_high: float = option(1e-2, "largest rate that an agent may choose", above=0)
    agent_rate: float = option(0.01, "rate of the critics, ten times that of the actors", above=0)
    warmup: int = option(35, "rounds of random actions before the agents decide", low=0)
    explore: int = option(500, "rounds over which the agents' noise fades after the warm-up", low=0)
    replay: int = option(1000, "transitions that an agent remembers; it sees one per round", low=1)

    def check(self, task: Task, training: TrainingConfig) -> None:
        if not self.lr_low < self.lr_high:
            raise UsageError(f"lr_low is {self.lr_low}: must be below lr_high ({self.lr_high})")
        if not task.has_split("val"):
            raise UsageError(
                f"dapfl rewards its agents on validation data, and task '{task.name}' has none: set val_share"
            )

    @property
    def agent(self) -> Config:
        rate = self.agent_rate
        return Config(
            critic_lr=rate,
            actor_lr=rate / 10,
            target_rate=rate,
            capacity=self.replay,
            warmup=self.warmup,
            fade=self.explore,
        )

    def init_client(self, task: Task, params: Params) -> State:
        return {"player": agents.empty(self.agent, 2, 2)}

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        learning = client.round > self.warmup
        action, playing = agents.client_turn(
            client, self.agent, client.state["player"], _seen(client, client.start), learning
        )
        # Their eta = 10^(a_0 - 3) and epochs = int(20 (a_1 + 1) / 2), the latter kept from being 0.
        return LocalHParams(
            epochs_of(action[1], self.epochs_most), rate_of(action[0], self.lr_low, self.lr_high)
        ), {"player": playing}

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        up, state = super().upload(client)
        before, after = state["player"]["state"], _seen(client, client.trained)
        gain = (before[0] - after[0]) + (after[1] - before[1])
        return up, {"player": {**state["player"], "reward": gain}}


def _seen(client: Client, model: Params) -> Tensor:
    accuracy, loss = client.task.utility_and_loss(client.evaluate(model))
    return torch.stack([loss, accuracy]).double()
