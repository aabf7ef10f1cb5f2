"""Autopilot: PAGE's two players for people who do not want to set anything; see :mod:`equipoise.methods.steering`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import (
    Client,
    Down,
    Method,
    Range,
    Server,
    State,
    Task,
    Train,
    Training,
    Tree,
    Up,
    option,
    weighted_mean,
)
from equipoise.contract.ranges import COUNT, LOSS, SHARE
from equipoise.core.errors import UsageError
from equipoise.methods import policies, steering

EPOCHS = 8  # the least that clients train; the rate does the rest
MEASURED = ("error", "loss", "square", "val", "half")
POOLED = ("loss", "square", "val", "reached", "own")
PARTS = torch.tensor([1.0, 0.5, 0.0, 2.0], dtype=torch.float64)
"""What personal models may keep of local training; where nothing speaks for another part, the first."""


@dataclass(frozen=True)
class Autopilot(Method):
    """eta_i = decay(t/T) need(f_i/f) (f - f*) / (4 |g|^2) exp(z);  p_i ~ n_i (error_i + .02)^k;
    v <- m(T) v + sum p_i (w_i - w).

    The rate follows what clients measure; z follows validation loss; m, k and the decay know the length of the run.
    """

    name: ClassVar[str] = "autopilot"
    family: ClassVar[str] = "controller"
    reports: ClassVar[Mapping[str, Range]] = {
        **dict.fromkeys(("loss", "val", "reached", "own", "parts"), LOSS),
        **{"error": SHARE, "square": COUNT, "later": Range(-1.0, 1.0)},
    }
    policy: str = option(
        "rule", "what corrects the rate: rule, learned (trained on many federations), or a file of train-policy"
    )

    def check(self, task: Task, training: Training) -> None:
        super().check(task, training)
        if type(task).steepness is Task.steepness:
            raise UsageError(f"{self.name} measures gradients, and task '{task.name}' has none: choose another method")
        policies.row(self.policy)

    # --- client -----------------------------------------------------------------------------------------------------

    def client_init(self, task: Task, params: Tree) -> State:
        return {name: torch.zeros((), dtype=torch.float64) for name in MEASURED}

    def decide(self, c: Client) -> tuple[Train, State]:
        train = c.evaluate(c.start, "train")
        val = c.evaluate(c.start)["loss"].double() if c.task.has("val") else train["loss"].double()
        seen = (1 - c.task.merit(train)[0].double(), train["loss"].double(), c.steepness(c.start), val, val)
        state = dict(zip(MEASURED, seen, strict=True))
        rate = self.first_rate(c, state) if c.down.train is None else c.train.lr
        rate = rate * steering.need(state["loss"], c.down.extra["loss"]) * steering.decay(c.round, c.rounds)
        return Train(c.train.epochs.clamp(min=EPOCHS), rate), state

    def first_rate(self, c: Client, state: State) -> Tensor:
        """The client's own: Polyak's step as if all loss could go, tried for an epoch to see how much of it does."""
        bold = steering.polyak(state["loss"], torch.zeros_like(state["loss"]), state["square"])
        tried = c.fit(c.start, train=Train(torch.ones_like(c.train.epochs), bold))
        return steering.polyak(state["loss"], c.evaluate(tried, "train")["loss"].double(), state["square"])

    def update(self, c: Client) -> tuple[Tree, State]:
        """In two halves, to see whether the later one still helps on validation data."""
        early = c.train.epochs // 2
        half = c.fit(c.start, train=Train(early, c.train.lr))
        trained = c.fit(half, train=Train(c.train.epochs - early, c.train.lr), stream=1)
        return trained, {**c.state, "half": c.evaluate(half)["loss"].double()} if c.task.has("val") else c.state

    def upload(self, c: Client) -> tuple[Up, State]:
        up, state = super().upload(c)
        up.metrics |= {name: state[name] for name in ("error", "loss", "square", "val")}
        up.metrics["reached"] = c.evaluate(c.trained, "train")["loss"].double()
        if c.task.has("val"):
            losses = torch.stack([c.evaluate(self.moved(c, part))["loss"].double() for part in PARTS])
            up.metrics |= {"own": losses[0], "later": (losses[0] - state["half"]).sign(), "parts": losses}
        return up, state

    def moved(self, c: Client, part: Tensor) -> Tree:
        """The received model, moved by this part of what training changed."""
        return {name: c.start[name] + part.to(w.dtype) * (w - c.start[name]) for name, w in c.trained.items()}

    def personal(self, c: Client) -> Tree:
        return self.moved(c, c.down.extra["part"])

    # --- server -----------------------------------------------------------------------------------------------------

    def server_init(self, task: Task, params: Tree) -> State:
        zero = torch.zeros((), dtype=torch.float64)
        v = {name: torch.zeros_like(w) for name, w in params.items()}
        state: State = {"v": v, "best": params, "rate": zero, "z": zero, "loss": zero, "reached": zero + math.inf}
        last_and_least = torch.full((2,), math.inf, dtype=torch.float64)
        return state | {"val": last_and_least, "parts": torch.zeros_like(PARTS), "row": policies.row(self.policy)}

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        """The rate, once it is measured; the last cohort's loss; the part of training that personal models keep."""
        down, state = super().give(s, ids)
        down = replace(down, extra={"loss": state["loss"], "part": PARTS[state["parts"].argmin()]})
        if float(state["rate"]) > 0:
            rate = (state["rate"] * state["z"].exp()).expand(len(ids))
            down = replace(down, train=Train(torch.full_like(ids, s.training.epochs), rate))
        return down, state

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        k = 0.5 * (1 - steering.late(s.round, s.rounds))
        p = s.task.sizes(ids) * (up.metrics["error"] + steering.LEAST_ERROR) ** k
        return p / p.sum(), s.state

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        state, back = self.steer(s, ids, up.metrics)
        if back:
            return state["best"], state
        m, w, mean = steering.momentum(s.rounds), s.params, weighted_mean(up.params, weights)
        v = {name: m * state["v"][name] + (mean[name] - w[name]) for name in w}
        return {name: w[name] + v[name] for name in w}, {**state, "v": v}

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> tuple[State, bool]:
        """What this round's measurements, pooled by data size, mean for the next; whether to go back to the best."""
        n = s.task.sizes(ids).double()
        told = {name: steering.believed(seen[name]) for name in POOLED if name in seen}
        pooled = {name: (n @ value / n.sum()).clamp(min=steering.TINY) for name, value in told.items()}
        reached = torch.minimum(s.state["reached"], pooled["reached"])
        state = {**s.state, "loss": pooled["loss"], "reached": reached}
        now = steering.polyak(pooled["loss"], state["reached"], pooled["square"])
        state["rate"] = (now * state["rate"]).sqrt() if float(state["rate"]) > 0 else now
        s.notes |= {"polyak": now, "validation_loss": pooled["val"]}
        if "own" not in pooled:
            return state, False
        pooled["later"] = n @ seen["later"] / n.sum()
        last, least = state["val"]
        view = steering.view(pooled, last, least, state["rate"] * state["z"].exp(), s.round / s.rounds)
        state["z"] = steering.correction(state["z"], state["row"], view)
        parts = torch.stack([n @ steering.believed(losses) / n.sum() for losses in seen["parts"].T])
        state["parts"] = 0.8 * state["parts"] + parts.clamp(min=steering.TINY).log()
        if pooled["val"] <= least:
            state["best"] = s.params
        state["val"] = torch.stack([pooled["val"], torch.minimum(least, pooled["val"])])
        too_far = bool(steering.overshot(pooled["val"], last, least, steering.noise(told["val"], s.task.clients)))
        if too_far:
            state["v"] = {name: torch.zeros_like(x) for name, x in state["v"].items()}
            state["z"] = state["z"] - math.log(2)
        s.notes["z"] = state["z"]
        return state, too_far and float(pooled["later"]) > 0
