"""Equilibrium: PAGE's two players with a well-posed problem. A rule decides; an agent may move it within bounds.

The server keeps momentum and weighs by error early, equally late. A client trains with a rate that falls with the loss
of the model it received. ``control`` tells what is added to the rule: nothing, a learned residual, or a random one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import (
    Client,
    Down,
    Method,
    OverRounds,
    Range,
    Server,
    State,
    Task,
    Train,
    Training,
    Tree,
    Up,
    option,
)
from equipoise.contract.ranges import SHARE
from equipoise.core.errors import UsageError
from equipoise.learners.ddpg import export
from equipoise.methods.page import shared
from equipoise.methods.steering import LEAST_ERROR

CONTROLS = ("zero", "learned", "random")
LOSS_AT_FULL_RATE = 0.5  # eta_i = lr_high sqrt(f_i / 0.5) below this loss, lr_high above it


@dataclass(frozen=True)
class Equilibrium(Method):
    """v <- m v + sum p_i (w_i - w); w <- w + v; p_i ~ error_i^k; eta_i = clip(lr_high sqrt(f_i / .5), lr_low, lr_high).

    k and the scale of eta decay in the last part of the run: k from 1 to 0, eta to ``decay_to`` of itself.
    """

    name: ClassVar[str] = "equilibrium"
    family: ClassVar[str] = "controller"
    reports: ClassVar[Mapping[str, Range]] = {"error": SHARE, **shared.REPORTS}
    summed: ClassVar[bool] = True
    control: str = option(
        "zero", "what an agent adds to the rule: zero (nothing), learned, or random in its range", choices=CONTROLS
    )
    server_momentum: OverRounds[float] = option(0.97, "momentum m of the server's step", low=0, below=1)
    local_epochs: int = option(8, "epochs of the rule", low=1)
    lr_low: float = option(0.01, "smallest rate of the rule", above=0)
    lr_high: float = option(0.1, "largest rate of the rule", above=0)
    decay_from: float = option(0.5, "share of the rounds after which rate and weights decay", low=0, below=1)
    decay_to: float = option(0.1, "part of the rate that is left in the last round", above=0, high=1)

    @property
    def decides(self) -> frozenset[str]:
        return super().decides if self.control == "learned" else super().decides - {"give"}

    def check(self, task: Task, training: Training) -> None:
        if self.lr_low > self.lr_high:
            raise UsageError(f"lr_low is {self.lr_low}: must be at most lr_high ({self.lr_high})")
        if self.control == "learned" and not task.has("val"):
            raise UsageError(
                f"the agent is rewarded on validation data, and task '{task.name}' has none: set val_share"
            )

    def late(self, round: int, rounds: int) -> float:
        """0 until ``decay_from``, then linearly to 1 in the last round."""
        return max(0.0, (round / rounds - self.decay_from) / (1 - self.decay_from))

    # --- client -----------------------------------------------------------------------------------------------------

    def client_init(self, task: Task, params: Tree) -> State:
        state: State = {"error": torch.zeros((), dtype=torch.float64)}
        return state if self.control == "zero" else state | {"player": shared.residual_init(shared.ACTIONS)}

    def decide(self, c: Client) -> tuple[Train, State]:
        received = c.evaluate(c.start, "train")
        rate = self.lr_high * (received["loss"].double() / LOSS_AT_FULL_RATE).sqrt()
        rate = rate.clamp(self.lr_low, self.lr_high) * self.decay_to ** self.late(c.round, c.rounds)
        epochs = torch.full_like(c.train.epochs, self.local_epochs)
        state = {**c.state, "error": 1 - c.task.merit(received)[0].double()}
        if self.control == "zero":
            return Train(epochs, rate), state
        if self.control == "random":
            action = shared.anything(c, shared.ACTIONS)
        else:
            view, loss = shared.log_loss(received["loss"]), c.evaluate(c.start)["loss"]
            spread = shared.NOISE * (1 - c.round / c.rounds)
            action, state["player"] = shared.move(c, shared.CONFIG, state["player"], view, loss, spread)
        return Train(shared.epochs_around(epochs, action[0]), shared.rate_around(rate, action[1])), state

    def upload(self, c: Client) -> tuple[Up, State]:
        up, state = super().upload(c)
        up.metrics["error"] = state["error"]
        if self.control == "learned":
            up.metrics |= shared.report(state["player"])
            state = {**state, "player": shared.close(state["player"], c.evaluate(c.trained)["loss"])}
        return up, state

    # --- server -----------------------------------------------------------------------------------------------------

    def server_init(self, task: Task, params: Tree) -> State:
        state: State = {"v": {name: torch.zeros_like(w) for name, w in params.items()}}
        if self.control == "learned":
            state["agent"] = shared.server_init(shared.CONFIG, shared.FEATURES + shared.ACTIONS, shared.ACTIONS)
        return state

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        down, state = super().give(s, ids)
        if self.control != "learned":
            return down, state
        agent = shared.seat(s, shared.CONFIG, state["agent"])
        return replace(down, extra={"policy": export(shared.CONFIG, agent)}), {**state, "agent": agent}

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        p = (up.metrics["error"] + LEAST_ERROR) ** (1.0 - self.late(s.round, s.rounds))
        state = s.state
        if self.control == "learned":
            state = {**state, "agent": shared.learn(s, shared.CONFIG, state["agent"], shared.closed(s, up.metrics))}
        return p / p.sum(), state

    def step(self, s: Server, sums: State) -> tuple[Tree, State]:
        mean, w = sums["mean"], s.params
        v = {name: self.server_momentum * s.state["v"][name] + (mean[name] - w[name]) for name in w}
        return {name: w[name] + v[name] for name in w}, {**s.state, "v": v}
