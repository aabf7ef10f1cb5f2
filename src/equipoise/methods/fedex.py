"""FedEx (Khodak et al., NeurIPS 2021): clients try rates at random; what validates well is tried more often."""

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

ARMS = torch.tensor(
    [1 / 9, 1 / 3, 1.0, 3.0, 9.0], dtype=torch.float64
)  # factors of the configured rate
FORGET = 0.9  # weight of the past in the mean loss that arms are held against


@dataclass(frozen=True)
class FedEx(Method):
    """Arm a_i ~ theta;  g_a = sum p_i (f_i - mean f) [a_i = a] / theta_a;  theta ~ theta exp(-eta g).

    f_i is the trained model's loss on the client's validation data; eta = sqrt(2 log A / sum over rounds of max g^2).
    """

    name: ClassVar[str] = "fedex"
    family: ClassVar[str] = "controller"
    report_ranges: ClassVar[Mapping[str, ValueRange]] = {
        "arm": ValueRange(0.0, len(ARMS) - 1.0),
        "loss": LOSS,
    }

    def check(self, task: Task, training: TrainingConfig) -> None:
        super().check(task, training)
        if not task.has_split("val"):
            raise UsageError(
                f"fedex compares rates on validation data, and task '{task.name}' has none: set val_share"
            )

    def init_client(self, task: Task, params: Params) -> State:
        return {"arm": torch.zeros((), dtype=torch.int64)}

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        reached = client.message.broadcast["theta"].cumsum(0)[:-1] <= client.uniform(1)
        arm = reached.sum()
        return LocalHParams(client.hparams.epochs, client.hparams.lr * ARMS[arm]), {"arm": arm}

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        up, state = super().upload(client)
        up.metrics |= {
            "arm": state["arm"],
            "loss": client.evaluate(client.trained)["loss"].double(),
        }
        return up, state

    def init_server(self, task: Task, params: Params) -> State:
        zero = torch.zeros((), dtype=torch.float64)
        return {
            "theta": torch.full_like(ARMS, 1 / len(ARMS)),
            "squares": zero,
            "losses": zero,
            "rounds": zero,
        }

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        down, state = super().distribute(server, ids)
        return replace(down, broadcast={"theta": state["theta"]}), state

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        assert isinstance(weights, Tensor)
        params, state = super().aggregate(server, ids, updates, weights)
        loss, theta = updates.metrics["loss"], state["theta"]
        losses, rounds = FORGET * state["losses"] + weights @ loss, FORGET * state["rounds"] + 1
        tried = torch.nn.functional.one_hot(updates.metrics["arm"], len(ARMS)).to(loss.dtype)
        g = (weights * (loss - losses / rounds)) @ tried / theta
        squares = state["squares"] + g.abs().max() ** 2
        step = math.sqrt(2 * math.log(len(ARMS))) / squares.sqrt().clamp(min=1e-12)
        theta = (theta.log() - step * g).softmax(0)
        server.logged["theta"] = theta.tolist()
        return params, {"theta": theta, "squares": squares, "losses": losses, "rounds": rounds}
