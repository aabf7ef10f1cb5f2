"""Autopilot: PAGE's two players for people who do not want to set anything. Its formulas are in steering.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, ServerMessage, Method, ValueRange, Server, State, Task, LocalHParams, TrainingConfig, Params, ClientUpdate
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
    report_ranges: ClassVar[Mapping[str, ValueRange]] = measuring.REPORTS
    runs_trial_training: ClassVar[bool] = True

    def check(self, task: Task, training: TrainingConfig) -> None:
        super().check(task, training)
        if type(task).grad_sq_norm is Task.grad_sq_norm:
            raise UsageError(f"{self.name} measures gradients, and task '{task.name}' has none: choose another method")

    # --- client -----------------------------------------------------------------------------------------------------

    def init_client(self, task: Task, params: Params) -> State:
        return measuring.empty()

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        state = {**client.state, **measuring.received(client)}
        epochs, rate = client.hparams.epochs.clamp(min=EPOCHS), client.hparams.lr.double()
        if client.message.hparams is None:  # nobody has chosen a rate yet
            rates = steering.on_trial(rate, steering.polyak(state["loss"], state["square"]))
            state["trials"] = measuring.trials(client, epochs, rates)
            rate = steering.chosen(rates, state["trials"])
        return LocalHParams(epochs, rate * steering.decay(client.round, client.num_rounds)), state

    def train(self, client: Client) -> tuple[Params, State]:
        """In two halves, to see whether the later one still helps on validation data."""
        early = client.hparams.epochs // 2
        half = client.fit(client.start, hparams=LocalHParams(early, client.hparams.lr))
        trained = client.fit(half, hparams=LocalHParams(client.hparams.epochs - early, client.hparams.lr), stream=1)
        return trained, {**client.state, "half": measuring.judged(client, half)}

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        up, state = super().upload(client)
        up.metrics |= measuring.told(client, state)
        if client.task.has_split("val"):
            up.metrics |= measuring.validated(client, state["half"])
        return up, state

    # --- server -----------------------------------------------------------------------------------------------------

    def init_server(self, task: Task, params: Params) -> State:
        return {**stepping.start(params), **steering.start()}

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """The rate with its correction, once it is chosen."""
        down, state = super().distribute(server, ids)
        rate = (state["rate"] * state["need"] * state["z"].exp()).expand(len(ids))
        train = LocalHParams(torch.full_like(ids, server.training.epochs), rate)
        return replace(down, hparams=train if float(state["rate"]) > 0 else None), state

    def aggregate(self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params) -> tuple[Params, State]:
        state, m = self.steer(server, ids, updates.metrics)
        w, mean = server.params, weighted_mean(updates.params, weights)
        change = {name: mean[name] - w[name] for name in w}
        by = stepping.Step(m, state["reach"], steering.faded(server.round, server.num_rounds))
        new, state = stepping.moved(w, change, stepping.lengths(w, updates.params), by, state)
        return server.with_client_batch_stats(new, mean), state

    def steer(self, server: Server, ids: Tensor, seen: Params) -> tuple[State, float]:
        """What this round's measurements mean for the next; and this round's momentum."""
        pooled = steering.pooled(seen, server.task.num_examples(ids).double())
        state, m = {**server.state}, steering.momentum(server.num_rounds)
        if float(state["rate"]) == 0:
            rates = steering.on_trial(torch.full_like(state["rate"], server.training.lr), seen["step"].median())
            state |= {"rate": steering.chosen(rates, pooled["trials"]), "first": pooled["loss"]}
        state["need"] = steering.need(pooled["loss"], state["first"])
        server.logged |= {"rate": state["rate"], "validation_loss": pooled["val"]}
        if "later" not in pooled:
            return state, m
        chance = steering.noise(seen["val"], server.task.num_clients)
        state, fell = steering.corrected(state, pooled, chance, server.num_rounds)
        server.logged |= {"z": state["z"], "reach": state["reach"]}
        return state, m if fell else 0.0
