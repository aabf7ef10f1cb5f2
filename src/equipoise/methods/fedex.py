"""FedEx: exponentiated gradient over a few learning rates that clients try at random.

Khodak et al., "Federated Hyperparameter Tuning: Challenges, Baselines, and Connections to
Weight-Sharing", NeurIPS 2021 (arXiv:2106.04502), algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    ServerMessage,
    State,
    Task,
    TrainingConfig,
    ValueRange,
)
from equipoise.core.report_validation import LOSS
from equipoise.utils.errors import UsageError

LR_FACTORS = torch.tensor([1 / 9, 1 / 3, 1.0, 3.0, 9.0], dtype=torch.float64)
"""The arms of the bandit: factors of the configured learning rate."""
NUM_ARMS = len(LR_FACTORS)
BASELINE_DECAY = 0.9
"""Weight of the past in the mean loss that serves as the baseline."""


@dataclass(frozen=True)
class FedEx(Method):
    """Draw an arm a_i ~ theta for every client and raise theta for arms that validate well.

    g_a = sum_i p_i (f_i - baseline) [a_i = a] / theta_a and theta ~ theta exp(-eta g), where f_i is
    the trained model's loss on the client's validation data, the baseline is the discounted mean of
    the f_i, and eta = sqrt(2 log A / sum over rounds of max_a g_a^2) with A arms.

    The server state holds theta `[A]`, the sum of the squared maxima (`squares`), and the
    discounted sums of losses and rounds, whose ratio is the baseline.
    """

    name: ClassVar[str] = "fedex"
    family: ClassVar[str] = "controller"
    report_ranges: ClassVar[Mapping[str, ValueRange]] = {
        "arm": ValueRange(0.0, NUM_ARMS - 1.0),
        "loss": LOSS,
    }

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse a task without validation data."""
        super().check(task, training)
        if not task.has_split("val"):
            raise UsageError(
                "fedex compares learning rates on validation data, and task "
                f"'{task.info.name}' has none: set val_share"
            )

    # --- client -----------------------------------------------------------------------------

    def init_client(self, task: Task, params: Params) -> State:
        """Keep the arm of the round."""
        return {"arm": torch.zeros((), dtype=torch.int64)}

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        """Draw an arm from theta by inverting its cumulative sum."""
        cumulative = client.message.broadcast["theta"].cumsum(0)
        arm = (cumulative[:-1] <= client.uniform(1)).sum()
        hparams = LocalHParams(client.hparams.epochs, client.hparams.lr * LR_FACTORS[arm])
        return hparams, {"arm": arm}

    def allowed_hparams(
        self, task: Task, proposed: LocalHParams, round: int, num_rounds: int, server_chose: bool
    ) -> tuple[LocalHParams, LocalHParams]:
        """Allow the arms' rates."""
        lowest = LocalHParams(proposed.epochs, proposed.lr * LR_FACTORS.min())
        return lowest, LocalHParams(proposed.epochs, proposed.lr * LR_FACTORS.max())

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Report the arm and the trained model's validation loss."""
        update, state = super().upload(client)
        loss = client.evaluate(client.trained)["loss"].double()
        update.metrics |= {"arm": state["arm"], "loss": loss}
        return update, state

    # --- server -----------------------------------------------------------------------------

    def init_server(self, task: Task, params: Params) -> State:
        """Start with equal probabilities."""
        zero = torch.zeros((), dtype=torch.float64)
        theta = torch.full_like(LR_FACTORS, 1 / NUM_ARMS)
        return {"theta": theta, "squares": zero, "losses": zero, "rounds": zero}

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Send the model and theta."""
        message, state = super().distribute(server, ids)
        return replace(message, broadcast={"theta": state["theta"]}), state

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        """Average the models as FedAvg does, and take one step on theta."""
        assert isinstance(weights, Tensor)
        params, state = super().aggregate(server, ids, updates, weights)
        loss = updates.metrics["loss"]
        theta = state["theta"]

        losses = BASELINE_DECAY * state["losses"] + weights @ loss
        rounds = BASELINE_DECAY * state["rounds"] + 1
        advantage = loss - losses / rounds

        is_arm = torch.nn.functional.one_hot(updates.metrics["arm"], NUM_ARMS).to(loss.dtype)
        g = (weights * advantage) @ is_arm / theta
        squares = state["squares"] + g.abs().max() ** 2
        eta = math.sqrt(2 * math.log(NUM_ARMS)) / squares.sqrt().clamp(min=1e-12)
        theta = (theta.log() - eta * g).softmax(0)
        server.logged["theta"] = theta.tolist()
        return params, {"theta": theta, "squares": squares, "losses": losses, "rounds": rounds}
