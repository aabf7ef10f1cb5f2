"""Autopilot: PAGE's two players for people who do not want to set anything.

Clients measure how steep their loss is; the server makes one rate of it, and moves that rate round by round by signs that
have no scale. Weights know sizes and errors, momentum and decay know the length of the run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import (
    Client,
    Down,
    Method,
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
from equipoise.core.errors import UsageError

LEAST_DROP = 0.1
LEAST_ERROR = 0.02  # a client without errors still counts


@dataclass(frozen=True)
class Autopilot(Method):
    """eta = kappa f/|g|^2 exp(z);  p_i ~ n_i (error_i + .02)^k;  v <- m v + sum p_i (w_i - w);  w <- w + v."""

    name: ClassVar[str] = "autopilot"
    kappa: float = option(0.25, "first rate, in Polyak's steps f/|g|^2")
    k: float = option(0.5, "k")
    local_epochs: int = option(8, "epochs")
    decay_from: float = option(0.5, "decay")
    decay_to: float = option(0.1, "decay")
    least_momentum: float = option(0.0, "m")
    horizon: float = option(4.0, "h")
    c_rose: float = option(0.0, "")
    c_polyak: float = option(0.0, "")
    c_rise: float = option(0.4, "")
    own: float = option(0.0, "exponent of own loss")
    gain: float = option(1.0, "")
    leak: float = option(0.9, "")
    pool_n: bool = option(True, "")
    restart: int = option(1, "")
    tolerance: float = option(0.05, "")
    cut: float = option(0.7, "")
    back: float = option(1.0, "")
    c_worse: float = option(0.0, "")
    knows: bool = option(True, "decay")
    track: float = option(0.5, "")
    look: bool = option(True, "")
    c_half: float = option(0.3, "")
    look2: bool = option(False, "")
    pers: bool = option(True, "")
    sizes: float = option(1.0, "")

    def late(self, round: int, rounds: int) -> float:
        return max(0.0, (round / rounds - self.decay_from) / (1 - self.decay_from))

    def momentum(self, rounds: int) -> float:
        return min(0.97, max(self.least_momentum, 1 - self.horizon / rounds))

    # --- client -----------------------------------------------------------------------------------------------------

    def client_init(self, task: Task, params: Tree) -> State:
        return {name: torch.zeros((), dtype=torch.float64) for name in ("error", "loss", "square", "val", "half")}

    def decide(self, c: Client) -> tuple[Train, State]:
        received, slope = c.evaluate(c.start, "train"), c.slope(c.start)
        val = c.evaluate(c.start)["loss"] if c.task.has("val") else received["loss"]
        f = received["loss"].double()
        state = {
            "error": 1 - received["acc"].double(),
            "loss": slope["loss"],
            "square": slope["square"],
            "val": val.double(),
            "half": val.double(),
        }
        rate = c.train.lr
        if c.down.train is None:
            step = slope["loss"] / slope["square"]
            if self.look:
                tried = c.fit(c.start, train=Train(torch.ones_like(c.train.epochs), self.kappa * step))
                reached = c.evaluate(tried, "train")["loss"].double()
                step = torch.maximum(f - reached, LEAST_DROP * f) / slope["square"]
                if self.look2:
                    again = c.slope(tried)
                    step = torch.minimum(step, again["loss"] / again["square"].clamp(min=1e-30))
            rate = self.kappa * step
        if self.own and c.down.train is not None:
            rate = rate * (f / c.down.extra["loss"]).clamp(0.01, 1.0) ** self.own
        to = max(self.decay_to, 1 - self.momentum(c.rounds)) if self.knows else self.decay_to
        rate = rate * to ** self.late(c.round, c.rounds)
        return Train(torch.full_like(c.train.epochs, self.local_epochs), rate), state

    def update(self, c: Client) -> tuple[Tree, State]:
        first = c.train.epochs // 2
        half = c.fit(c.start, train=Train(first, c.train.lr))
        state = c.state
        if c.task.has("val"):
            state = {**state, "half": c.evaluate(half)["loss"].double()}
        return c.fit(half, train=Train(c.train.epochs - first, c.train.lr), stream=1), state

    def upload(self, c: Client) -> tuple[Up, State]:
        up, state = super().upload(c)
        up.metrics |= state
        up.metrics["reached"] = c.evaluate(c.trained, "train")["loss"].double()
        if c.task.has("val"):
            trained = c.evaluate(c.trained)["loss"].double()
            up.metrics["rose"] = (trained > state["val"]).double()
            middle = {n: (c.start[n] + c.trained[n]) / 2 for n in c.trained}
            up.metrics["steps"] = torch.stack([state["val"], c.evaluate(middle)["loss"].double(), trained]).clamp(min=1e-3).log()
            up.metrics["half"] = (trained - state["half"]).sign()
        return up, state

    def personal(self, c: Client) -> Tree:
        if not (self.pers and "step" in c.down.extra):
            return c.trained
        return {n: c.start[n] + c.down.extra["step"].to(w.dtype) * (w - c.start[n]) for n, w in c.trained.items()}

    # --- server -----------------------------------------------------------------------------------------------------

    def server_init(self, task: Task, params: Tree) -> State:
        zero = torch.zeros((), dtype=torch.float64)
        v = {name: torch.zeros_like(w) for name, w in params.items()}
        return {"v": v, "first": zero, "z": zero, "loss": zero, "best": dict(params), "best_loss": zero + torch.inf, "reached": zero + torch.inf, "steps": torch.zeros(3, dtype=torch.float64)}

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        down, state = super().give(s, ids)
        if float(state["first"]) == 0:
            return down, state
        rate = (state["first"] * state["z"].exp()).expand(len(ids))
        s.notes["z"] = state["z"]
        return replace(down, train=Train(torch.full_like(ids, self.local_epochs), rate), extra={"loss": state["loss"], "step": state["steps"].argmin() / 2}), state

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        n = s.task.sizes(ids).double() ** self.sizes
        p = n * (up.metrics["error"] + LEAST_ERROR) ** (self.k * (1 - self.late(s.round, s.rounds)))
        return p / p.sum(), s.state

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        mean, w, m = weighted_mean(up.params, weights), s.params, self.momentum(s.rounds)
        seen = up.metrics
        n = s.task.sizes(ids).double()
        share = n / n.sum() if self.pool_n else torch.full_like(n, 1 / len(n))
        f, square, val = (share @ seen[name] for name in ("loss", "square", "val"))
        first, z, last = s.state["first"], s.state["z"], s.state["loss"]
        reached = torch.minimum(s.state["reached"], share @ seen["reached"])
        if float(first) == 0:
            first, last = self.kappa * f / square, val
        rose = share @ seen["rose"] if "rose" in seen else torch.zeros_like(f)
        polyak = (first * z.exp() * square / f).log() / 3
        rise = (val / last).log()
        worse = (val / s.state["best_loss"]).log()
        s.notes |= {"rose": rose, "polyak": polyak, "rise": rise, "worse": worse, "rate": first * z.exp()}
        half = share @ seen['half'] if 'rose' in seen else torch.zeros_like(f)
        s.notes['half'] = half
        move = -torch.tanh(self.c_half * half + self.c_rose * rose + self.c_polyak * polyak.clamp(-2, 2) + self.c_rise * rise.clamp(-1, 1) + self.c_worse * worse.clamp(0, 1))
        z = self.leak * z + self.gain * move
        if self.track:
            now = self.kappa * torch.maximum(f - reached, LEAST_DROP * f) / square
            first = (self.track * now.log() + (1 - self.track) * first.log()).exp()
        best, best_loss = s.state["best"], s.state["best_loss"]
        v = s.state["v"]
        if worse <= 0:
            best, best_loss = w, val
        start = w
        if self.restart and worse > self.tolerance and rise > 0:
            v = {name: torch.zeros_like(x) for name, x in v.items()}
            z = z - self.cut
            if self.restart > 1:
                start = {n: self.back * best[n] + (1 - self.back) * w[n] for n in w}
                mean = {n: mean[n] - w[n] + start[n] for n in w} if self.restart == 2 else start
        v = {name: m * v[name] + (mean[name] - start[name]) for name in w}
        steps = s.state["steps"] * 0.8 + seen["steps"].mean(0) if "steps" in seen else s.state["steps"]
        s.notes["step"] = steps.argmin() / 2
        state = {"steps": steps, "reached": reached, "first": first, "z": z, "loss": val, "v": v, "best": best, "best_loss": best_loss}
        return {name: start[name] + v[name] for name in w}, state
