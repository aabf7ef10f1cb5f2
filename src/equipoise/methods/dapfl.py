"""Dap-FL: a DDPG agent at each client chooses epochs and learning rate.

Chen et al., "Dap-FL: Federated Learning Flourishes by Adaptive Tuning and Secure Aggregation", IEEE
TPDS 2023 (arXiv:2206.03623). The server averages by data size. It is the client half of PAGE with
another state and another reward; their encrypted aggregation is not part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    State,
    Task,
    TrainingConfig,
    option,
)
from equipoise.core.method import hparams_like
from equipoise.methods.page import agents
from equipoise.methods.page.page import absolute_epochs, absolute_lr
from equipoise.rl import ddpg
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class DapFL(Method):
    """Each client's agent observes the received model and is paid what training improves.

    Client state: `agent`, an `agents.PlayerState`.
    """

    name: ClassVar[str] = "dapfl"
    family: ClassVar[str] = "controller"
    capabilities: ClassVar[Capabilities] = Capabilities(aggregates_by_sum=True)
    max_epochs: int = option(20, "largest number of epochs that an agent may choose", low=1)
    lr_min: float = option(1e-4, "smallest rate that an agent may choose", above=0)
    lr_max: float = option(1e-2, "largest rate that an agent may choose", above=0)
    agent_rate: float = option(0.01, "rate of the critics, ten times that of the actors", above=0)
    warmup: int = option(35, "rounds of random actions before the agents decide", low=0)
    explore: int = option(
        500, "rounds over which the agents' exploration noise decays after the warm-up", low=0
    )
    replay: int = option(
        1000, "size of an agent's replay buffer; it stores one transition per round", low=1
    )

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse an empty range of learning rates, and tasks without validation data."""
        if not self.lr_min < self.lr_max:
            raise UsageError(f"lr_min is {self.lr_min}: must be below lr_max ({self.lr_max})")
        if not task.has_split("val"):
            raise UsageError(
                f"dapfl rewards its agents on validation data, and task '{task.info.name}' "
                "has none: set val_share"
            )

    @property
    def agent_config(self) -> ddpg.Config:
        """The agents' hyper-parameters."""
        return ddpg.Config(
            critic_lr=self.agent_rate,
            actor_lr=self.agent_rate / 10,
            tau=self.agent_rate,
            buffer_size=self.replay,
            learning_starts=self.warmup,
            noise_decay_steps=self.explore,
        )

    def init_client(self, task: Task, params: Params) -> State:
        """Return an agent of two observations and two actions, without experience."""
        return {"agent": agents.init_state(self.agent_config, 2, 2)}

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        """Observe loss and accuracy of the received model, and choose learning rate and epochs.

        The paper has eta = 10^(a_0 - 3) and epochs = int(20 (a_1 + 1) / 2); here at least 1 epoch.
        """
        observation = _loss_and_accuracy(client, client.start)
        learning = client.round > self.warmup
        action, player = agents.act_and_learn(
            client, self.agent_config, client.state["agent"], observation, learning
        )
        lr = absolute_lr(action[0], self.lr_min, self.lr_max)
        epochs = absolute_epochs(action[1], self.max_epochs)
        return LocalHParams(epochs, lr), {"agent": player}

    def allowed_hparams(
        self, task: Task, proposed: LocalHParams, round: int, num_rounds: int, server_chose: bool
    ) -> tuple[LocalHParams, LocalHParams]:
        """Allow 1 to `max_epochs` epochs and rates within the bounds."""
        lowest = hparams_like(proposed, 1, self.lr_min)
        return lowest, hparams_like(proposed, self.max_epochs, self.lr_max)

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Upload the model; pay the agent the gains in loss and in accuracy."""
        update, state = super().upload(client)
        before = state["agent"]["last_state"]
        after = _loss_and_accuracy(client, client.trained)
        reward = (before[0] - after[0]) + (after[1] - before[1])
        return update, agents.set_last_transition(state, "agent", last_reward=reward)


def _loss_and_accuracy(client: Client, params: Params) -> Tensor:
    """Return loss and accuracy `[2]` of a model on the client's validation data."""
    accuracy, loss = client.task.utility_and_loss(client.evaluate(params))
    return torch.stack([loss, accuracy]).double()
