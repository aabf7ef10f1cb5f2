"""PAGE's options, what follows from them, and what is refused; the game itself is in page.py."""

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
    Params,
    Server,
    ServerMessage,
    State,
    Task,
    ValueRange,
)
from equipoise.core.report_validation import FRACTION, LOSS, winsorize
from equipoise.methods.page import agents, energy
from equipoise.methods.page.agents import told
from equipoise.methods.page.config import (
    LEAST,
    Game,
)

TABLE_7 = {"synthetic": 0.01, "cifar100": 0.05, "tinyimagenet": 0.001, "shakespeare": 0.005}
"""The critics' rate by task. In every column the actors take a tenth of it, and the target nets follow at it."""


def empty(window: int) -> State:
    rows = max(1, 2 * window)
    return {
        "utilities": torch.zeros(rows, 2, dtype=torch.float64),
        "rounds": torch.zeros((), dtype=torch.int64),
    }


def record(
    history: State, received_loss: Tensor, trained_loss: Tensor, least: float
) -> tuple[Tensor, State]:
    """The round's two utilities, one over the clients' mean loss on validation data, and the history with them."""
    losses = torch.stack([received_loss.double().mean(), trained_loss.double().mean()])
    newest = -losses.clamp(min=least).log()
    utilities = torch.cat([history["utilities"], newest.unsqueeze(0)])[1:]
    return newest, {"utilities": utilities, "rounds": history["rounds"] + 1}


def settled(history: State, tolerance: float, not_before: int = 0) -> bool:
    """Whether both windows are full, start after round ``not_before``, and agree."""
    utilities = history["utilities"]
    window = len(utilities) // 2
    if window == 0 or int(history["rounds"]) < 2 * window + not_before:
        return False
    change = utilities[window:].mean(0) - utilities[:window].mean(0)
    return bool((change.abs() < tolerance).all())


POLISH = 5  # epochs of a client's last touch at a tenth of its rate, for each power of ten of bias to its side


def last_touch(client: Client, power: float) -> Params:
    """A few epochs more at a tenth of the rate, which the upload does not contain."""
    epochs = torch.full_like(client.hparams.epochs, math.ceil(-power * POLISH))
    return client.fit(
        client.trained, hparams=LocalHParams(epochs, client.hparams.lr / 10), stream=1
    )


SCORES = {"received_loss": LOSS, "trained_loss": LOSS, "trained_acc": FRACTION, "error": FRACTION}
"""What clients tell of their models."""


@dataclass(frozen=True)
class Page(Game):
    """Client i sees s_i(t) and chooses a_i(t) = (alpha_i, eta_i); the server sees s_CS(t) and chooses a_CS(t) = p.

    What an action means and what it is paid is the ``reading``'s (readings.py). Who plays are agents that learn, or
    their controls, which keep no player in the state (leader.py, follower.py).
    """

    name: ClassVar[str] = "page"
    family: ClassVar[str] = "controller"
    needs_same_round_replies: ClassVar[bool] = True

    @property
    def report_ranges(self) -> Mapping[str, ValueRange]:  # type: ignore[override]
        return {**super().report_ranges, **SCORES, **agents.REPORTS}

    @property
    def leads(self) -> agents.Control:
        return agents.chosen(self)

    @property
    def follows(self) -> agents.Follower:
        return agents.chosen_follower(self)

    # --- client: the leaders ----------------------------------------------------------------------------------------

    def init_client(self, task: Task, params: Params) -> State:
        zero = torch.zeros((), dtype=torch.float64)
        state = (
            super().init_client(task, params)
            | {"received": zero, "error": zero}
            | self.leads.client_init(task)
        )
        return state | {"energy": energy.client_init()} if self.resources else state

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        """s_i(t): accuracy of the received model, and around what is configured its log loss and the time left."""
        merit, loss = (
            value.double()
            for value in client.task.utility_and_loss(
                client.evaluate(client.start, self.read.split)
            )
        )
        state, seen = {**client.state, "received": loss, "error": 1 - merit}, [merit]
        if self.read.exponent and self.weighs_errors:
            state["error"] = (
                1 - client.task.utility_and_loss(client.evaluate(client.start, "train"))[0].double()
            )
        if not self.own:
            return client.hparams, state
        if self.read.around:
            seen += [
                loss.clamp(min=LEAST).log(),
                torch.full_like(loss, 1 - client.round / client.num_rounds),
            ]
        if self.resources:  # the agent also sees how many epochs it can pay for
            state["energy"] = energy.forecast(
                client, self.limits, state["energy"], self.resources == energy.DEVICES
            )
            seen.append(energy.affordable(state["energy"]) / self.epochs_most)
        action, state = self.leads.act(client, state, torch.stack(seen))
        action = self.read.kept(action, self.lr_low, self.lr_high)
        return self.meaning(action, client.hparams), told(state, "player", action=action)

    def meaning(self, action: Tensor, train: LocalHParams) -> LocalHParams:
        """a_i(t) = (alpha_i, eta_i); what an agent does not decide stays as configured."""
        chosen, epochs, lr = dict(zip(self.own, action, strict=True)), train.epochs, train.lr
        if "alpha" in chosen:
            epochs = self.read.epochs(chosen["alpha"], epochs, self.epochs_most, self.lr_high)
        if "eta" in chosen:
            lr = self.read.rate(chosen["eta"], lr, self.lr_low, self.lr_high)
        return LocalHParams(epochs, lr)

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """r_i(t): by how much training lowered log f_i, or u_i = 1 / f_i(trained); under a budget less lambda_i b_i."""
        up, state = super().upload(client)
        merit, trained = (
            value.double()
            for value in client.task.utility_and_loss(
                client.evaluate(client.trained, self.read.split)
            )
        )
        metrics = {
            "received_loss": state["received"],
            "trained_loss": trained,
            **self.leads.report(state),
        }
        if "p" in self.factors and not isinstance(
            self.follows, agents.FollowerEach
        ):  # which scores uploads itself
            metrics["trained_acc"] = merit
        if self.weighs_errors:
            metrics["error"] = state["error"]
        reward = self.read.paid(state["received"], trained, -self.lean)
        if self.resources:
            penalty, state["energy"] = energy.bill(client, state["energy"], self.multiplier_rate)
            reward = reward - penalty
        return ClientUpdate(up.params, up.extra, {**up.metrics, **metrics}), told(
            state, "player", reward=reward
        )

    def personal_model(self, client: Client) -> Params:
        return (
            super().personal_model(client)
            if self.lean >= 0 or self.read.published
            else last_touch(client, self.lean)
        )

    # --- server: the follower ---------------------------------------------------------------------------------------

    def init_server(self, task: Task, params: Params) -> State:
        state = super().init_server(task, params) | {"history": empty(self.window)}
        return state | self.leads.server_init(task) | self.follows.server_init(task)

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """What the clients' agent acts with, if they share one."""
        down, state = super().distribute(server, ids)
        extra, state = self.leads.give(server, state)
        return replace(down, broadcast={**down.broadcast, **extra}), state

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        """a_CS(t) = p, paid u_CS = 1 / sum p_i f_i, or what the aggregate improves."""
        near = {
            name: winsorize(updates.metrics[name]) for name in SCORES if name in updates.metrics
        }
        updates = replace(updates, metrics={**updates.metrics, **near})
        weights, state = super().aggregation_weights(server, ids, updates)
        trained = near["trained_loss"]
        utilities, state["history"] = record(
            state["history"], near["received_loss"], trained, LEAST
        )
        server.logged |= {"log_utility_global": utilities[0], "log_utility_local": utilities[1]}
        state = self.leads.learn(server, state, updates.metrics)  # for the round to come
        if "p" not in self.factors:
            return weights, state
        assert isinstance(
            weights, Tensor
        )  # whoever has weights by parameter is refused before the run
        action, state = self.follows.act(server, state, ids, updates)
        error = updates.metrics["error"] if self.weighs_errors else None
        p = self.read.weights(action, weights, error, self.lean)
        server.logged["p"] = p
        return p, told(state, "follower", reward=1 / (p @ trained).clamp(min=LEAST))

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        """Paid on the server's own data: differences on public ones, in the authors' code the level on test data."""
        params, state = super().aggregate(server, ids, updates, weights)
        if "follower" not in state or not (self.read.difference or self.read.published):
            return params, state
        models = (server.params, params) if self.read.difference else (params,)
        stack = {name: torch.stack([model[name] for model in models]) for name in params}
        losses = server.evaluate(stack, "test" if self.read.published else "public")[
            "loss"
        ].double()
        return params, told(
            state, "follower", reward=self.read.paid(losses[0], losses[-1], self.lean)
        )

    def should_stop(self, server: Server) -> str | None:
        if settled(server.state["history"], self.tolerance, self.waits(server.num_rounds)):
            return "equilibrium: global and local utility stopped evolving"
        return super().should_stop(server)
