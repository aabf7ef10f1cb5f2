"""PAGE (WWW 2024): clients lead with epochs and rate, the server follows with weights; each player is a DDPG agent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, Method, Server, State, Task, Train, Training, Tree, Up, option
from equipoise.control import energy, player, settle
from equipoise.control.actions import epochs_of, published, rate_of, simplex
from equipoise.control.ddpg import Config
from equipoise.control.over import Over
from equipoise.errors import UsageError

TABLE_7 = {"synthetic": 0.01, "cifar100": 0.05, "tiny-imagenet": 0.001, "shakespeare": 0.005}
"""The critics' rate by task. In every column the actors take a tenth of it, and the target nets follow at it."""
FACTORS = ("alpha", "eta", "p")
POLISH = 5  # epochs of a client's last touch at a tenth of its rate, for each power of ten of bias to its side
LEAST_ERROR = 0.02  # a client without errors still counts in a biased mean
LEAST = 0.01  # losses below count as this: validation sets are small, and 1/f would have no bound


@dataclass(frozen=True)
class Page(Over):
    """Client i: state acc_i, action (alpha_i, eta_i), reward 1/f_i. Server: state acc_1..N, action p, reward 1/F."""

    name: ClassVar[str] = "page"
    adapt: str = option("alpha,eta,p", "what agents decide: any of alpha (epochs), eta (rate), p (weights)")
    epochs_most: int = option(20, "largest number of epochs that an agent may choose")
    lr_low: float = option(0.001, "smallest rate that an agent may choose")
    lr_high: float = option(0.1, "largest rate that an agent may choose")
    agent_rate: float = option(0.0, "rate of the critics, ten times that of the actors; 0 for the paper's (table 7)")
    warmup: int = option(35, "rounds of random actions before the agents decide")
    explore: int = option(500, "rounds over which the agents' noise fades after the warm-up")
    replay: int = option(1000, "transitions that an agent remembers; it sees one a round")
    agent_batch: int = option(32, "transitions in an agent's update")
    window: int = option(50, "rounds in each of the two windows that must agree for the game to end; 0 for never")
    tolerance: float = option(0.01, "relative change of the utilities between the windows that counts as none")
    bias: str = option("1:1", "weight of the global against the local model, as 10:1 or 1:10")
    resources: str = option("", "energy budget of the clients: 'default' or a TOML file of ranges; empty for none")
    multiplier_rate: float = option(0.5, "rate of the Lagrangian multipliers under an energy budget")
    as_published: bool = option(False, "the authors' own choices: clipped actions, rewards on test data (see docs)")

    @cached_property
    def factors(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.adapt.split(",") if name.strip())

    @cached_property
    def own(self) -> tuple[str, ...]:
        """What a client's agent decides."""
        return tuple(name for name in FACTORS[:2] if name in self.factors)

    @cached_property
    def limits(self) -> energy.Resources:
        return energy.read(self.resources)

    @cached_property
    def lean(self) -> float:
        """Powers of ten towards the server's side; negative towards the clients'."""
        server, _, clients = self.bias.partition(":")
        return math.log10(float(server) / float(clients))

    def check(self, task: Task, training: Training) -> None:
        unknown = [name for name in self.factors if name not in FACTORS]
        if unknown or not self.factors:
            raise UsageError(f"adapt is '{self.adapt}': must be a list of {', '.join(FACTORS)}")
        for name in ("epochs_most", "replay", "agent_batch"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}: must be at least 1")
        for name in ("warmup", "explore", "window", "tolerance", "agent_rate"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}: must be at least 0")
        if not 0 < self.lr_low < self.lr_high:
            raise UsageError(f"lr_low is {self.lr_low} and lr_high {self.lr_high}: must be 0 < lr_low < lr_high")
        if not self.as_published and not task.has("val"):
            raise UsageError(
                f"{self.name} rewards its agents on validation data, and task '{task.name}' has none: set val_share"
            )
        super().check(task, training)
        if "p" in self.factors:
            self.needs_free_weights(task)
        self._check_bias()
        if self.resources:
            energy.read(self.resources)
            if "alpha" not in self.own:
                raise UsageError("an energy budget limits epochs: let the agents decide them (--adapt alpha,...)")
        if not self.multiplier_rate > 0:
            raise UsageError(f"multiplier_rate is {self.multiplier_rate}: must be above 0")

    def _check_bias(self) -> None:
        try:
            lean = self.lean
        except (ValueError, ZeroDivisionError):
            lean = math.inf
        if not abs(lean) <= 2:
            raise UsageError(f"bias is '{self.bias}': must be a ratio like 10:1, from 1:100 to 100:1")
        if lean > 0 and "p" not in self.factors and not self.as_published:
            raise UsageError(f"bias {self.bias} acts through the weights: let the server decide them (--adapt ...,p)")
        if lean < 0 and type(self.below).personal is not Method.personal and not self.as_published:
            raise UsageError(
                f"bias {self.bias} gives clients a last touch of their models, but '{self.base}' makes personal models "
                "itself: choose another --base"
            )

    def config(self, task: Task, noise: str) -> Config:
        rate = self.agent_rate or TABLE_7.get(task.name, TABLE_7["synthetic"])
        ours = not self.as_published
        return Config(
            critic_lr=rate,
            actor_lr=rate / 10,
            target_rate=rate,
            batch=self.agent_batch,
            capacity=self.replay,
            warmup=self.warmup,
            noise=noise,
            fade=self.explore,
            normalise=ours,
            restraint=0.01 if ours else 0.0,
        )

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
        scores = c.evaluate(c.start, self.split)
        state, train = {**c.state, "received": scores["loss"].double(), "error": 1 - scores["acc"].double()}, c.train
        if self.own:
            seen = [scores["acc"].double()]
            if self.resources:  # the agent also sees how many epochs it can pay for
                state["energy"] = energy.forecast(c, self.limits, state["energy"], state["player"]["turns"] == 0)
                seen.append(energy.affordable(state["energy"]) / self.epochs_most)
            action, playing = player.client_turn(c, self.client_config(c.task), state["player"], torch.stack(seen))
            train, meant = self.meaning(action, train)
            state["player"] = {**playing, "action": meant}
        return train, state

    def meaning(self, action: Tensor, train: Train) -> tuple[Train, Tensor]:
        """The decision that an action stands for, and the action as the agent's memory keeps it."""
        if self.as_published:  # the memory keeps clipped actions, while the actor's update feeds unclipped ones
            action = published(action, self.lr_low, self.lr_high)
        chosen = dict(zip(self.own, action, strict=True))
        epochs, lr = train.epochs, train.lr
        if "alpha" in chosen and self.as_published:
            epochs = (chosen["alpha"] / self.lr_high * self.epochs_most).round().clamp(min=1).long()
        elif "alpha" in chosen:
            epochs = epochs_of(chosen["alpha"], self.epochs_most)
        if "eta" in chosen:
            lr = chosen["eta"] if self.as_published else rate_of(chosen["eta"], self.lr_low, self.lr_high)
        return Train(epochs, lr), action

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
        """Biased to the clients: a last touch at a tenth of the rate, which the upload does not contain."""
        if self.lean >= 0 or self.as_published:
            return super().personal(c)
        epochs = torch.full_like(c.train.epochs, math.ceil(-self.lean * POLISH))
        return c.fit(c.trained, train=Train(epochs, c.train.lr / 10), stream=1)

    # --- server: the follower ---------------------------------------------------------------------------------------

    def server_init(self, task: Task, params: Tree) -> State:
        state = super().server_init(task, params) | {"history": settle.empty(self.window)}
        if "p" in self.factors:
            state["accs"] = torch.zeros(task.clients, dtype=torch.float64)
            state["player"] = player.empty(self.server_config(task), task.clients, task.clients)
        return state

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        """s_CS(t) = accuracy of every upload; a_CS(t) = p; r_CS(t) = 1 / sum p_i f_i. Absent clients: as last seen."""
        f = up.metrics["trained_loss"]
        utilities, history = settle.record(s.state["history"], up.metrics["received_loss"], f, LEAST)
        s.notes |= {"log_utility_global": utilities[0], "log_utility_local": utilities[1]}
        if "p" not in self.factors:
            weights, state = super().weigh(s, ids, up)
            return weights, {**state, "history": history}
        seen = s.state["accs"].index_copy(0, ids, s.evaluate(up.params, self.server_split)["acc"].double())
        observed = s.state["accs"] if self.as_published else seen
        action, playing = player.server_turn(s, self.server_config(s.task), s.state["player"], observed)
        p = simplex(action[ids])
        if self.tilted:
            p = p * (up.metrics["error"] + LEAST_ERROR) ** self.lean
            p = p / p.sum()
        playing["reward"] = 1 / (p @ f).clamp(min=LEAST)
        s.notes["p"] = p
        return p, {**s.state, "history": history, "accs": seen, "player": playing}

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        params, state = super().aggregate(s, ids, up, weights)
        if self.as_published and "p" in self.factors:  # the code's reward is the aggregate's own loss
            loss = s.evaluate({name: value.unsqueeze(0) for name, value in params.items()}, self.server_split)["loss"]
            reward = 10.0 ** max(0.0, self.lean) / loss[0].double().clamp(min=LEAST)
            state["player"] = {**state["player"], "reward": reward}
        return params, state

    def stop(self, s: Server) -> str | None:
        if settle.settled(s.state["history"], self.tolerance, self.warmup):
            return "equilibrium: global and local utility stopped evolving"
        return super().stop(s)

    @property
    def tilted(self) -> bool:
        """Biased to the server: its weights lean to the clients on which the global model errs."""
        return self.lean > 0 and not self.as_published

    @property
    def split(self) -> str:
        return "test" if self.as_published else "val"

    @property
    def server_split(self) -> str:
        return "test" if self.as_published else "public"
