"""FedEx (Khodak et al., NeurIPS 2021): clients try rates at random; what validates well is tried more often."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, Down, Method, Range, Server, State, Task, Train, Training, Tree, Up
from equipoise.contract.ranges import LOSS
from equipoise.core.errors import UsageError

ARMS = torch.tensor([1 / 9, 1 / 3, 1.0, 3.0, 9.0], dtype=torch.float64)  # factors of the configured rate
FORGET = 0.9  # weight of the past in the mean loss that arms are held against


@dataclass(frozen=True)
class FedEx(Method):
    """Arm a_i ~ theta;  g_a = sum p_i (f_i - mean f) [a_i = a] / theta_a;  theta ~ theta exp(-eta g).

    f_i is the trained model's loss on the client's validation data; eta = sqrt(2 log A / sum over rounds of max g^2).
    """

    name: ClassVar[str] = "fedex"
    reports: ClassVar[Mapping[str, Range]] = {"arm": Range(0.0, len(ARMS) - 1.0), "loss": LOSS}

    def check(self, task: Task, training: Training) -> None:
        super().check(task, training)
        if not task.has("val"):
            raise UsageError(f"fedex compares rates on validation data, and task '{task.name}' has none: set val_share")

    def client_init(self, task: Task, params: Tree) -> State:
        return {"arm": torch.zeros((), dtype=torch.int64)}

    def decide(self, c: Client) -> tuple[Train, State]:
        reached = c.down.extra["theta"].cumsum(0)[:-1] <= c.uniform(1)
        arm = reached.sum()
        return Train(c.train.epochs, c.train.lr * ARMS[arm]), {"arm": arm}

    def upload(self, c: Client) -> tuple[Up, State]:
        up, state = super().upload(c)
        up.metrics |= {"arm": state["arm"], "loss": c.evaluate(c.trained)["loss"].double()}
        return up, state

    def server_init(self, task: Task, params: Tree) -> State:
        zero = torch.zeros((), dtype=torch.float64)
        return {"theta": torch.full_like(ARMS, 1 / len(ARMS)), "squares": zero, "losses": zero, "rounds": zero}

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        down, state = super().give(s, ids)
        return replace(down, extra={"theta": state["theta"]}), state

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        assert isinstance(weights, Tensor)
        params, state = super().aggregate(s, ids, up, weights)
        loss, theta = up.metrics["loss"], state["theta"]
        losses, rounds = FORGET * state["losses"] + weights @ loss, FORGET * state["rounds"] + 1
        tried = torch.nn.functional.one_hot(up.metrics["arm"], len(ARMS)).to(loss.dtype)
        g = (weights * (loss - losses / rounds)) @ tried / theta
        squares = state["squares"] + g.abs().max() ** 2
        step = math.sqrt(2 * math.log(len(ARMS))) / squares.sqrt().clamp(min=1e-12)
        theta = (theta.log() - step * g).softmax(0)
        s.notes["theta"] = theta.tolist()
        return params, {"theta": theta, "squares": squares, "losses": losses, "rounds": rounds}
