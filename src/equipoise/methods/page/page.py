"""PAGE (WWW 2024): clients lead with epochs and rate, the server follows with weights; each player is a DDPG agent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, Server, State, Task, Train, Training, Tree, Up, option
from equipoise.learners.ddpg import Config
from equipoise.methods.page import energy, leaning, player
from equipoise.methods.page.actions import published, simplex
from equipoise.methods.page.game import LEAST, TABLE_7, Game
from equipoise.methods.page.leaning import LEAST_ERROR

__all__ = ["LEAST", "LEAST_ERROR", "TABLE_7", "Page"]


@dataclass(frozen=True)
class Page(Game):
    """Client i: state acc_i, action (alpha_i, eta_i), reward 1/f_i. Server: state acc_1..N, action p, reward 1/F."""

    name: ClassVar[str] = "page"
    family: ClassVar[str] = "controller"
    bias: str = option("1:1", "weight of the global against the local model, as 10:1 or 1:10")
    resources: str = option("", "energy budget of the clients: 'default' or a TOML file of ranges; empty for none")
    multiplier_rate: float = option(0.5, "rate of the Lagrangian multipliers under an energy budget", above=0)
    as_published: bool = option(False, "the authors' own choices: clipped actions, rewards on test data (see docs)")

    @cached_property
    def limits(self) -> energy.Resources:
        return energy.read(self.resources)

    @cached_property
    def lean(self) -> float:
        return leaning.lean(self.bias)

    @property
    def split(self) -> str:
        return "test" if self.as_published else "val"

    def check(self, task: Task, training: Training) -> None:
        super().check(task, training)
        leaning.check(self, self.bias, self.as_published)
        energy.check(self.resources, self.own)

    def config(self, task: Task, noise: str) -> Config:
        plain = {"normalise": False, "restraint": 0.0} if self.as_published else {}
        return self.agent(task, noise=noise, **plain)

    def client_config(self, task: Task) -> Config:
        return self.config(task, "ou")

    def server_config(self, task: Task) -> Config:
        return self.config(task, "none" if self.as_published else "gaussian")

    # --- client: the leaders ----------------------------------------------------------------------------------------

    def client_init(self, task: Task, params: Tree) -> State:
        zero = torch.zeros((), dtype=torch.float64)
        state = super().client_init(task, params) | {"received": zero, "error": zero}
        if self.own:
            state["player"] = player.empty(self.client_config(task), 2 if self.resources else 1, len(self.own))
        if self.resources:
            state["energy"] = energy.client_init()
        return state

    def decide(self, c: Client) -> tuple[Train, State]:
        """s_i(t) = accuracy of the received model; a_i(t) = (alpha_i, eta_i)."""
        merit, loss = (value.double() for value in c.task.merit(c.evaluate(c.start, self.split)))
        state, train = {**c.state, "received": loss, "error": 1 - merit}, c.train
        if self.own:
            seen = [merit]
            if self.resources:  # the agent also sees how many epochs it can pay for
                state["energy"] = energy.forecast(c, self.limits, state["energy"], state["player"]["turns"] == 0)
                seen.append(energy.affordable(state["energy"]) / self.epochs_most)
            action, playing = player.client_turn(c, self.client_config(c.task), state["player"], torch.stack(seen))
            train, meant = self.meaning(action, train)
            state["player"] = {**playing, "action": meant}
        return train, state

    def meaning(self, action: Tensor, train: Train) -> tuple[Train, Tensor]:
        """The decision that an action stands for, and the action as the agent's memory keeps it."""
        if not self.as_published:
            return self.train_of(action, train), action
        # The memory keeps clipped actions, while the actor's update feeds unclipped ones.
        action = published(action, self.lr_low, self.lr_high)
        chosen = dict(zip(self.own, action, strict=True))
        epochs = train.epochs
        if "alpha" in chosen:
            epochs = (chosen["alpha"] / self.lr_high * self.epochs_most).round().clamp(min=1).long()
        return Train(epochs, chosen.get("eta", train.lr)), action

    def upload(self, c: Client) -> tuple[Up, State]:
        """r_i(t) = u_i(t) = 1 / f_i(trained model)."""
        up, state = super().upload(c)
        trained = c.evaluate(c.trained, self.split)["loss"].double()
        if self.own:
            scale = 10.0 ** max(0.0, -self.lean) if self.as_published else 1.0
            reward = scale / trained.clamp(min=LEAST)
            if self.resources:
                penalty, state["energy"] = energy.bill(c, state["energy"], self.multiplier_rate)
                reward = reward - penalty
            state["player"] = {**state["player"], "reward": reward}
        seen = {"received_loss": state["received"], "trained_loss": trained}
        if self.tilted:
            seen["error"] = state["error"]
        return Up(up.params, up.extra, {**up.metrics, **seen}), state

    def personal(self, c: Client) -> Tree:
        biased_to_clients = self.lean < 0 and not self.as_published
        return leaning.last_touch(c, self.lean) if biased_to_clients else super().personal(c)

    # --- server: the follower ---------------------------------------------------------------------------------------

    def server_init(self, task: Task, params: Tree) -> State:
        state = super().server_init(task, params)
        if "p" in self.factors:
            state["accs"] = torch.zeros(task.clients, dtype=torch.float64)
            state["player"] = player.empty(self.server_config(task), task.clients, task.clients)
        return state

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        """s_CS(t) = accuracy of every upload; a_CS(t) = p; r_CS(t) = 1 / sum p_i f_i. Absent clients: as last seen."""
        history = self.utilities(s, up)
        if "p" not in self.factors:
            weights, state = super().weigh(s, ids, up)
            return weights, {**state, "history": history}
        merits = s.task.merit(s.evaluate(up.params, self.server_split))[0].double()
        seen = s.state["accs"].index_copy(0, ids, merits)
        observed = s.state["accs"] if self.as_published else seen
        action, playing = player.server_turn(s, self.server_config(s.task), s.state["player"], observed)
        p = simplex(action[ids])
        if self.tilted:
            p = leaning.tilt(p, up.metrics["error"], self.lean)
        playing["reward"] = 1 / (p @ up.metrics["trained_loss"]).clamp(min=LEAST)
        s.notes["p"] = p
        return p, {**s.state, "history": history, "accs": seen, "player": playing}

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        params, state = super().aggregate(s, ids, up, weights)
        if self.as_published and "p" in self.factors:  # the code's reward is the aggregate's own loss
            loss = s.evaluate({name: value.unsqueeze(0) for name, value in params.items()}, self.server_split)["loss"]
            reward = 10.0 ** max(0.0, self.lean) / loss[0].double().clamp(min=LEAST)
            state["player"] = {**state["player"], "reward": reward}
        return params, state

    @property
    def tilted(self) -> bool:
        return self.lean > 0 and not self.as_published

    @property
    def server_split(self) -> str:
        return "test" if self.as_published else "public"
