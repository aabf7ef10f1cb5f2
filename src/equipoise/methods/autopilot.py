"""Autopilot: PAGE's two players for people who do not want to set anything. Its formulas are in steering.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, Down, Method, Range, Server, State, Task, Train, Training, Tree, Up, option
from equipoise.contract.method import weighted_mean
from equipoise.core.errors import UsageError
from equipoise.methods import measuring, policies, safe, steering, stepping

EPOCHS = 8  # the least that clients train


@dataclass(frozen=True)
class Autopilot(Method):
    """eta_i = decay(t/T) need(f_i/f) eta exp(z);  p_i ~ n_i (error_i + .02)^k;  D = sum p_i (w_i - w);
    v <- m(T) v + D;  w <- w + v max(1, c r/q)^left(t/T).

    eta is the configured rate unless a trial shows that f / (4 |g|^2) is much better; z, m, c follow validation loss.
    """

    name: ClassVar[str] = "autopilot"
    family: ClassVar[str] = "controller"
    reports: ClassVar[Mapping[str, Range]] = measuring.REPORTS
    tries: ClassVar[bool] = True
    policy: str = option(
        "rule", "what corrects the rate: rule, learned (trained on many federations), or a file of train-policy"
    )
    safe: bool = option(
        False, "try the corrected rate on a share of the clients, and keep it if validation data say so"
    )

    def check(self, task: Task, training: Training) -> None:
        super().check(task, training)
        if type(task).steepness is Task.steepness:
            raise UsageError(f"{self.name} measures gradients, and task '{task.name}' has none: choose another method")
        if self.safe and not task.has("val"):
            raise UsageError(f"safe judges by validation data, and task '{task.name}' has none: set val_share")
        policies.row(self.policy)

    # --- client -----------------------------------------------------------------------------------------------------

    def client_init(self, task: Task, params: Tree) -> State:
        return measuring.empty()

    def decide(self, c: Client) -> tuple[Train, State]:
        state = {**c.state, **measuring.received(c)}
        epochs, rate = c.train.epochs.clamp(min=EPOCHS), c.train.lr.double()
        if c.down.train is None:  # nobody has chosen a rate yet
            rates = rate, steering.polyak(state["loss"], state["square"])
            state["trials"] = measuring.trials(c, epochs, rates)
            rate = torch.where(steering.much_better(state["trials"]), rates[1], rates[0])
        need = steering.need(state["loss"], c.down.extra["loss"])
        return Train(epochs, rate * need * steering.decay(c.round, c.rounds)), state

    def update(self, c: Client) -> tuple[Tree, State]:
        """In two halves, to see whether the later one still helps on validation data."""
        early = c.train.epochs // 2
        half = c.fit(c.start, train=Train(early, c.train.lr))
        trained = c.fit(half, train=Train(c.train.epochs - early, c.train.lr), stream=1)
        return trained, {**c.state, "half": measuring.judged(c, half)}

    def upload(self, c: Client) -> tuple[Up, State]:
        up, state = super().upload(c)
        up.metrics |= measuring.told(c, state)
        if self.safe:
            up.metrics["tried"] = c.down.each["tried"]
        if c.task.has("val"):
            models = c.trained, measuring.at_whole_rate(c) if self.finishing(c) else c.trained
            up.metrics |= measuring.compared(c, state["half"], models)
        return up, state

    def finishing(self, c: Client) -> bool:
        """In the last quarter of the run rates have decayed, and personal models may want to be trained at more."""
        return c.task.has("val") and c.down.train is not None and steering.late(c.round, c.rounds) > 0.5

    def personal(self, c: Client) -> Tree:
        whole = c.down.extra["whole"]
        if not self.finishing(c) or not c.anybody(whole):
            return {**c.trained}  # as a model of its own in every round: what is kept of a client has one shape
        return {name: torch.where(whole, w, c.trained[name]) for name, w in measuring.at_whole_rate(c).items()}

    # --- server -----------------------------------------------------------------------------------------------------

    def server_init(self, task: Task, params: Tree) -> State:
        state = {**stepping.start(params), **steering.start(), "row": policies.row(self.policy)}
        return state | {"safe": safe.opened()} if self.safe else state

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        """The rate, once it is chosen, with its correction; the last cohort's loss; how personal models are made."""
        down, state = super().give(s, ids)
        rate = (state["rate"] * state["z"].exp()).expand(len(ids))
        if self.safe:
            tried, held = safe.choose(s, state["safe"], ids)
            tried = tried & (state["z"] < 0)  # what corrects nothing is no trial
            down, state = replace(down, each={"tried": tried}), {**state, "safe": held}
            rate = torch.where(tried, rate, state["rate"])
        extra = {"loss": steering.level(state), "rate": state["rate"], "whole": state["whole"] < 0}
        train = Train(torch.full_like(ids, s.training.epochs), rate)
        return replace(down, extra=extra, train=train if float(state["rate"]) > 0 else None), state

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        k = 0.5 * (1 - steering.late(s.round, s.rounds))
        p = s.task.sizes(ids) * (up.metrics["error"] + steering.LEAST_ERROR) ** k
        if not self.safe:
            return p / p.sum(), s.state
        judged = {"tried": up.metrics["tried"], "received_loss": up.metrics["val"], "trained_loss": up.metrics["own"]}
        p, held = safe.judge(s, s.state["safe"], judged, p / p.sum())
        return p, {**s.state, "safe": held}

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        state, m = self.steer(s, ids, up.metrics)
        w, mean = s.params, weighted_mean(up.params, weights)
        change = {name: mean[name] - w[name] for name in w}
        by = stepping.Step(m, state["reach"], 1 - steering.momentum(s.rounds) * steering.late(s.round, s.rounds))
        new, state = stepping.moved(w, change, stepping.lengths(w, up.params), by, state)
        return s.stepped(new, mean), state

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> tuple[State, float]:
        """What this round's measurements mean for the next; and this round's momentum."""
        pooled = steering.pooled(seen, s.task.sizes(ids).double())
        state, m = steering.after(s.state, pooled["loss"]), steering.momentum(s.rounds)
        if float(state["rate"]) == 0:
            measured = steering.much_better(pooled["trials"])
            state["rate"] = torch.where(measured, seen["step"].median(), s.training.lr)
        s.notes |= {"rate": state["rate"], "validation_loss": pooled["val"]}
        if "own" not in pooled:
            return state, m
        chance = steering.noise(seen["val"], s.task.clients)
        state, fell = steering.corrected(state, pooled, chance, s.round, s.rounds)
        s.notes |= {"z": state["z"], "reach": state["reach"]}
        return state, m if fell else 0.0
