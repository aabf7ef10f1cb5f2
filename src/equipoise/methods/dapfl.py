"""Dap-FL: a DDPG agent at each client chooses its epochs and learning rate.

Chen et al., "Dap-FL: Federated Learning Flourishes by Adaptive Tuning and Secure Aggregation",
IEEE TPDS 2023 (arXiv:2206.03623). The server averages by data size, as FedAvg does.
"""

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
    """Observe loss and accuracy of the received model; reward what training improves of both."""

    name: ClassVar[str] = "dapfl"
    family: ClassVar[str] = "controller"
    max_epochs: int = option(20, "largest number of epochs that an agent may choose", low=1)
    lr_min: float = option(1e-4, "smallest learning rate that an agent may choose", above=0)
    lr_max: float = option(1e-2, "largest learning rate that an agent may choose", above=0)
    agent_rate: float = option(
        0.01, "learning rate of the critics, ten times that of the actors", above=0
    )
    warmup: int = option(35, "rounds of random actions before the agents decide", low=0)
    explore: int = option(
        500, "rounds over which the agents' exploration noise decays after the warm-up", low=0
    )
    replay: int = option(
        1000, "size of an agent's replay buffer; it stores one transition per round", low=1
    )

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse an empty range of learning rates, and a task without validation data."""
        if not self.lr_min < self.lr_max:
            raise UsageError(f"lr_min is {self.lr_min}: must be below lr_max ({self.lr_max})")
        if not task.has_split("val"):
            raise UsageError(
                "dapfl rewards its agents on validation data, and task "
                f"'{task.name}' has none: set val_share"
            )

    @property
    def agent(self) -> Config:
        """Return the configuration of the DDPG agents."""
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
        """Start an agent with two observations and two actions."""
        return {"player": agents.empty(self.agent, 2, 2)}

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        """Let the agent learn and choose: lr = 10^(a_0 - 3), epochs = int(20 (a_1 + 1) / 2).

        At least one epoch is trained, unlike in the paper.
        """
        learning = client.round > self.warmup
        action, playing = agents.client_turn(
            client, self.agent, client.state["player"], _observation(client, client.start), learning
        )
        hparams = LocalHParams(
            epochs_of(action[1], self.max_epochs), rate_of(action[0], self.lr_min, self.lr_max)
        )
        return hparams, {"player": playing}

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Reward the agent with the fall of the loss plus the rise of the accuracy."""
        update, state = super().upload(client)
        before = state["player"]["state"]
        after = _observation(client, client.trained)
        reward = (before[0] - after[0]) + (after[1] - before[1])
        return update, {"player": {**state["player"], "reward": reward}}


def _observation(client: Client, model: Params) -> Tensor:
    """Return loss and accuracy of a model on the client's validation data, `[2]`."""
    accuracy, loss = client.task.utility_and_loss(client.evaluate(model))
    return torch.stack([loss, accuracy]).double()
