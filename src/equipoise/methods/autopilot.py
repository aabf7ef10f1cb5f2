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
    weighted_mean,
)
from equipoise.contract.ranges import COUNT, LOSS, SHARE
from equipoise.core.errors import UsageError
from equipoise.methods import steering

EPOCHS = 8  # the least that clients train; the rate does the rest
MEASURED = ("error", "loss", "square", "val", "half")
POOLED = ("loss", "square", "val", "reached", "own")
PARTS = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)  # of local training that a personal model may keep


@dataclass(frozen=True)
class Autopilot(Method):
    """eta = decay(t/T) (f - f*) / (4 |g|^2) exp(z);  p_i ~ n_i (error_i + .02)^k;  v <- m(T) v + sum p_i (w_i - w).

    The rate follows what clients measure; z follows validation loss; m, k and the decay know the length of the run.
    """

    name: ClassVar[str] = "autopilot"
    family: ClassVar[str] = "controller"
    reports: ClassVar[Mapping[str, Range]] = {
        **{"error": SHARE, "loss": LOSS, "val": LOSS, "reached": LOSS, "own": LOSS, "square": COUNT},
        **{"longer": Range(-1.0, 1.0), "parts": Range(-30.0, 30.0)},  # a sign; logarithms of losses
    }

    def check(self, task: Task, training: Training) -> None:
        super().check(task, training)
        if type(task).steepness is Task.steepness:
            raise UsageError(f"{self.name} measures gradients, and task '{task.name}' has none: choose another method")

    # --- client -----------------------------------------------------------------------------------------------------

    def client_init(self, task: Task, params: Tree) -> State:
        return {name: torch.zeros((), dtype=torch.float64) for name in MEASURED}

    def decide(self, c: Client) -> tuple[Train, State]:
        train = c.evaluate(c.start, "train")
        val = c.evaluate(c.start)["loss"].double() if c.task.has("val") else train["loss"].double()
        seen = (1 - c.task.merit(train)[0].double(), train["loss"].double(), c.steepness(c.start), val, val)
        state = dict(zip(MEASURED, seen, strict=True))
        rate = self.first_rate(c, state) if c.down.train is None else c.train.lr
        return Train(c.train.epochs.clamp(min=EPOCHS), rate * steering.decay(c.round, c.rounds)), state

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
            trained, middle = (c.evaluate(self.moved(c, part))["loss"].double() for part in (PARTS[2], PARTS[1]))
            up.metrics["own"] = trained
            up.metrics["longer"] = (trained - state["half"]).sign()
            up.metrics["parts"] = torch.stack([state["val"], middle, trained]).clamp(min=steering.TINY).log()
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
        last_and_least = {name: torch.full((2,), math.inf, dtype=torch.float64) for name in ("val", "own")}
        parts = torch.zeros(len(PARTS), dtype=torch.float64)
        return {"v": v, "rate": zero, "z": zero, "reached": zero + math.inf, "parts": parts, **last_and_least}

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        """One rate for all, once it is measured; and the part of training that personal models keep."""
        down, state = super().give(s, ids)
        chosen = PARTS[-1 - state["parts"].flip(0).argmin()]  # all of it, where nothing speaks for less
        down = replace(down, extra={"part": chosen})
        if float(state["rate"]) > 0:
            rate = (state["rate"] * state["z"].exp()).expand(len(ids))
            down = replace(down, train=Train(torch.full_like(ids, s.training.epochs), rate))
        return down, state

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        k = 0.5 * (1 - steering.late(s.round, s.rounds))
        p = s.task.sizes(ids) * (up.metrics["error"] + steering.LEAST_ERROR) ** k
        return p / p.sum(), s.state

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        state, w, mean = self.steer(s, ids, up.metrics), s.params, weighted_mean(up.params, weights)
        m = steering.momentum(s.rounds)
        v = {name: m * state["v"][name] + (mean[name] - w[name]) for name in w}
        return {name: w[name] + v[name] for name in w}, {**state, "v": v}

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> State:
        """What this round's measurements, pooled by data size, mean for the next."""
        n = s.task.sizes(ids).double()
        told = {name: steering.believed(seen[name]) for name in POOLED if name in seen}
        pooled = {name: (n @ value / n.sum()).clamp(min=steering.TINY) for name, value in told.items()}
        state = {**s.state, "reached": torch.minimum(s.state["reached"], pooled["reached"])}
        now = steering.polyak(pooled["loss"], state["reached"], pooled["square"])
        state["rate"] = (now * state["rate"]).sqrt() if float(state["rate"]) > 0 else now
        s.notes |= {"polyak": now, "validation_loss": pooled["val"]}
        if "own" not in pooled:
            return state
        rise = (pooled["val"] / state["val"][0]).log().nan_to_num(neginf=0.0)
        state["z"] = steering.correction(state["z"], n @ seen["longer"] / n.sum(), rise)
        state["parts"] = 0.8 * state["parts"] + seen["parts"].mean(0)
        too_far = {name: steering.overshot(pooled[name], *state[name]) for name in ("val", "own")}
        if too_far["val"] or too_far["own"]:
            state["v"] = {name: torch.zeros_like(x) for name, x in state["v"].items()}
        if too_far["val"]:
            state["z"] = state["z"] - math.log(2)
        s.notes["z"] = state["z"]
        for name in too_far:
            state[name] = torch.stack([pooled[name], torch.minimum(state[name][1], pooled[name])])
        return state
