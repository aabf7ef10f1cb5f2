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
from equipoise.contract.ranges import COUNT, LOSS, MOST_LOSS, SHARE
from equipoise.core.errors import UsageError
from equipoise.methods import policies, steering

EPOCHS = 8  # the least that clients train
MEASURED = ("error", "loss", "square", "val", "half")
POOLED = ("loss", "square", "val", "reached", "own")


@dataclass(frozen=True)
class Autopilot(Method):
    """eta_i = decay(t/T) need(f_i/f) eta exp(z);  p_i ~ n_i (error_i + .02)^k;  v <- m(T) v + sum p_i (w_i - w).

    eta is the configured rate unless a trial shows that f / (4 |g|^2) is much better; z and m follow validation loss.
    """

    name: ClassVar[str] = "autopilot"
    family: ClassVar[str] = "controller"
    reports: ClassVar[Mapping[str, Range]] = {
        **dict.fromkeys(("loss", "val", "reached", "own", "trials", "whole"), LOSS),
        **{"error": SHARE, "errors": SHARE, "square": COUNT, "step": COUNT, "rows": COUNT, "later": Range(-1.0, 1.0)},
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
        measured = {name: torch.zeros((), dtype=torch.float64) for name in MEASURED}
        return measured | {"trials": torch.zeros(2, dtype=torch.float64)}

    def decide(self, c: Client) -> tuple[Train, State]:
        train, val = c.evaluate(c.start, "train"), self.judged(c, c.start)
        seen = (1 - c.task.merit(train)[0].double(), train["loss"].double(), c.steepness(c.start), val, val)
        state = {**c.state, **dict(zip(MEASURED, seen, strict=True))}
        epochs, rate = c.train.epochs.clamp(min=EPOCHS), c.train.lr.double()
        if c.down.train is None:
            rates = rate, steering.polyak(state["loss"], state["square"])
            losses = [self.judged(c, c.fit(c.start, train=Train(epochs, tried))) for tried in rates]
            state["trials"] = torch.stack(losses).nan_to_num(nan=MOST_LOSS).clamp(max=MOST_LOSS)
            rate = torch.where(steering.much_better(state["trials"]), rates[1], rates[0])
        need = steering.need(state["loss"], c.down.extra["loss"])
        return Train(epochs, rate * need * steering.decay(c.round, c.rounds)), state

    def judged(self, c: Client, model: Tree) -> Tensor:
        """Validation loss; where there are no such data, training loss."""
        return c.evaluate(model, "val" if c.task.has("val") else "train")["loss"].double()

    def update(self, c: Client) -> tuple[Tree, State]:
        """In two halves, to see whether the later one still helps on validation data."""
        early = c.train.epochs // 2
        half = c.fit(c.start, train=Train(early, c.train.lr))
        trained = c.fit(half, train=Train(c.train.epochs - early, c.train.lr), stream=1)
        return trained, {**c.state, "half": self.judged(c, half)}

    def upload(self, c: Client) -> tuple[Up, State]:
        up, state = super().upload(c)
        up.metrics |= {name: state[name] for name in ("error", "loss", "square", "val", "trials")}
        up.metrics["reached"] = c.evaluate(c.trained, "train")["loss"].double()
        up.metrics["step"] = steering.polyak(state["loss"], state["square"])
        if c.task.has("val"):
            models = c.trained, self.at_whole_rate(c) if self.finishing(c) else c.trained
            scores = [c.evaluate(model) for model in models]
            own, whole = (score["loss"].double() for score in scores)
            up.metrics |= {"own": own, "later": (own - state["half"]).sign(), "whole": whole}
            up.metrics["errors"] = torch.stack([1 - c.task.merit(score)[0].double() for score in scores])
            up.metrics["rows"] = c.rows("val").double()
        return up, state

    def finishing(self, c: Client) -> bool:
        """In the last quarter of the run rates have decayed, and personal models may want to be trained at more."""
        return c.task.has("val") and c.down.train is not None and steering.late(c.round, c.rounds) > 0.5

    def at_whole_rate(self, c: Client) -> Tree:
        """Trained as the upload is, but for decay, need and z."""
        return c.fit(c.start, train=Train(c.train.epochs, c.down.extra["rate"].expand_as(c.train.lr)), stream=2)

    def personal(self, c: Client) -> Tree:
        whole = c.down.extra["whole"]
        if not self.finishing(c) or not c.anybody(whole):
            return {**c.trained}  # as a model of its own in every round: what is kept of a client has one shape
        return {name: torch.where(whole, w, c.trained[name]) for name, w in self.at_whole_rate(c).items()}

    # --- server -----------------------------------------------------------------------------------------------------

    def server_init(self, task: Task, params: Tree) -> State:
        zero = torch.zeros((), dtype=torch.float64)
        v = {name: torch.zeros_like(w) for name, w in params.items()}
        last_and_least = torch.full((2,), torch.inf, dtype=torch.float64)
        state: State = {"v": v, "rate": zero, "z": zero, "loss": zero, "val": last_and_least, "whole": zero}
        return state | {"row": policies.row(self.policy)}

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        """The rate, once it is chosen; the last cohort's loss; how personal models are made."""
        down, state = super().give(s, ids)
        down = replace(down, extra={"loss": state["loss"], "rate": state["rate"], "whole": state["whole"] < 0})
        if float(state["rate"]) > 0:
            rate = (state["rate"] * state["z"].exp()).expand(len(ids))
            down = replace(down, train=Train(torch.full_like(ids, s.training.epochs), rate))
        return down, state

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        k = 0.5 * (1 - steering.late(s.round, s.rounds))
        p = s.task.sizes(ids) * (up.metrics["error"] + steering.LEAST_ERROR) ** k
        return p / p.sum(), s.state

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        state, m = self.steer(s, ids, up.metrics)
        w, mean = s.params, weighted_mean(up.params, weights)
        v = {name: m * state["v"][name] + (mean[name] - w[name]) for name in w}
        return {name: w[name] + v[name] for name in w}, {**state, "v": v}

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> tuple[State, float]:
        """What this round's measurements, pooled by data size, mean for the next; and this round's momentum."""
        n = s.task.sizes(ids).double()

        def mean(told: Tensor) -> Tensor:
            return (n @ steering.believed(told) / n.sum()).clamp(min=steering.TINY)

        pooled = {name: mean(seen[name]) for name in POOLED if name in seen}
        state, m = {**s.state, "loss": pooled["loss"]}, steering.momentum(s.rounds)
        if float(state["rate"]) == 0:
            trials, configured = torch.stack([mean(losses) for losses in seen["trials"].T]), s.training.lr
            state["rate"] = torch.where(steering.much_better(trials), seen["step"].median(), configured)
        s.notes |= {"rate": state["rate"], "validation_loss": pooled["val"]}
        if "own" not in pooled:
            return state, m
        pooled["later"] = n @ seen["later"] / n.sum()
        last, least = state["val"]
        view = steering.view(pooled, last, least, state["rate"] * state["z"].exp(), s.round / s.rounds)
        state["z"] = steering.correction(state["z"], state["row"], view)
        errors = torch.stack([mean(told) for told in seen["errors"].T])
        losses = torch.stack([pooled["own"], mean(seen["whole"])])
        state["whole"] = state["whole"] + steering.worse(errors, losses, seen["rows"].sum())
        chance = steering.noise(steering.believed(seen["val"]), s.task.clients)
        if steering.risen(pooled["val"], last, chance):
            m = 0.0
            if steering.risen(pooled["val"], least, chance + steering.WORSE):
                state["z"] = state["z"] - math.log(2)
        state["val"] = torch.stack([pooled["val"], torch.minimum(least, pooled["val"])])
        s.notes["z"] = state["z"]
        return state, m
