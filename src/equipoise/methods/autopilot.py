"""Autopilot: PAGE's two players for people who do not want to set anything. Its formulas are in steering.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, Down, Method, Range, Server, State, Task, Train, Training, Tree, Up
from equipoise.contract.method import weighted_mean
from equipoise.core.errors import UsageError
from equipoise.methods import measuring, steering, stepping

EPOCHS = 8  # the least that clients train


@dataclass(frozen=True)
class Autopilot(Method):
    """eta(t) = eta need(f(t)/f(1)) exp(z) decay(t/T);  p_i ~ n_i;  D = sum p_i (w_i - w);  v <- m(T) v + D;
    w <- w + v max(1, c r/q)^left(t/T).

    eta is the configured rate unless a trial shows that f / (4 |g|^2), or one between, is much better; z, m, c follow
    validation loss.
    """

    name: ClassVar[str] = "autopilot"
    family: ClassVar[str] = "controller"
    reports: ClassVar[Mapping[str, Range]] = measuring.REPORTS
    tries: ClassVar[bool] = True

    def check(self, task: Task, training: Training) -> None:
        super().check(task, training)
        if type(task).steepness is Task.steepness:
            raise UsageError(f"{self.name} measures gradients, and task '{task.name}' has none: choose another method")

    # --- client -----------------------------------------------------------------------------------------------------

    def client_init(self, task: Task, params: Tree) -> State:
        return measuring.empty()

    def decide(self, c: Client) -> tuple[Train, State]:
        state = {**c.state, **measuring.received(c)}
        epochs, rate = c.train.epochs.clamp(min=EPOCHS), c.train.lr.double()
        if c.down.train is None:  # nobody has chosen a rate yet
            rates = steering.on_trial(rate, steering.polyak(state["loss"], state["square"]))
            state["trials"] = measuring.trials(c, epochs, rates)
            rate = steering.chosen(rates, state["trials"])
        return Train(epochs, rate * steering.decay(c.round, c.rounds)), state

    def update(self, c: Client) -> tuple[Tree, State]:
        """In two halves, to see whether the later one still helps on validation data."""
        early = c.train.epochs // 2
        half = c.fit(c.start, train=Train(early, c.train.lr))
        trained = c.fit(half, train=Train(c.train.epochs - early, c.train.lr), stream=1)
        return trained, {**c.state, "half": measuring.judged(c, half)}

    def upload(self, c: Client) -> tuple[Up, State]:
        up, state = super().upload(c)
        up.metrics |= measuring.told(c, state)
        if c.task.has("val"):
            up.metrics |= measuring.validated(c, state["half"])
        return up, state

    # --- server -----------------------------------------------------------------------------------------------------

    def server_init(self, task: Task, params: Tree) -> State:
        return {**stepping.start(params), **steering.start()}

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        """The rate with its correction, once it is chosen."""
        down, state = super().give(s, ids)
        rate = (state["rate"] * state["need"] * state["z"].exp()).expand(len(ids))
        train = Train(torch.full_like(ids, s.training.epochs), rate)
        return replace(down, train=train if float(state["rate"]) > 0 else None), state

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        state, m = self.steer(s, ids, up.metrics)
        w, mean = s.params, weighted_mean(up.params, weights)
        change = {name: mean[name] - w[name] for name in w}
        by = stepping.Step(m, state["reach"], steering.faded(s.round, s.rounds))
        new, state = stepping.moved(w, change, stepping.lengths(w, up.params), by, state)
        return s.stepped(new, mean), state

    def steer(self, s: Server, ids: Tensor, seen: Tree) -> tuple[State, float]:
        """What this round's measurements mean for the next; and this round's momentum."""
        pooled = steering.pooled(seen, s.task.sizes(ids).double())
        state, m = {**s.state}, steering.momentum(s.rounds)
        if float(state["rate"]) == 0:
            rates = steering.on_trial(torch.full_like(state["rate"], s.training.lr), seen["step"].median())
            state |= {"rate": steering.chosen(rates, pooled["trials"]), "first": pooled["loss"]}
        state["need"] = steering.need(pooled["loss"], state["first"])
        s.notes |= {"rate": state["rate"], "validation_loss": pooled["val"]}
        if "later" not in pooled:
            return state, m
        chance = steering.noise(seen["val"], s.task.clients)
        state, fell = steering.corrected(state, pooled, chance, s.rounds)
        s.notes |= {"z": state["z"], "reach": state["reach"]}
        return state, m if fell else 0.0
