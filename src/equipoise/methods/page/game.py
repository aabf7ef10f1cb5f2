"""What PAGE's games have in common: who decides what, what an action means, the utilities, and when a game ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from equipoise.contract import Range, Server, State, Task, Train, Training, Tree, Up, option
from equipoise.contract.ranges import LOSS, SHARE
from equipoise.core.errors import UsageError
from equipoise.learners.ddpg import Config
from equipoise.methods.over import Over
from equipoise.methods.page import settle, shared
from equipoise.methods.page.actions import epochs_of, rate_of

TABLE_7 = {"synthetic": 0.01, "cifar100": 0.05, "tinyimagenet": 0.001, "shakespeare": 0.005}
"""The critics' rate by task. In every column the actors take a tenth of it, and the target nets follow at it."""
FACTORS = ("alpha", "eta", "p")
LEAST = 0.01  # losses below count as this: validation sets are small, and 1/f would have no bound


@dataclass(frozen=True)
class Game(Over):
    """Clients lead with alpha and eta, the server follows with p. Subclasses say who the players are."""

    prompt: ClassVar[bool] = True
    adapt: str = option("alpha,eta,p", "what agents decide: any of alpha (epochs), eta (rate), p (weights)")
    epochs_most: int = option(20, "largest number of epochs that an agent may choose", low=1)
    lr_low: float = option(0.001, "smallest rate that an agent may choose", above=0)
    lr_high: float = option(0.1, "largest rate that an agent may choose", above=0)
    agent_rate: float = option(
        0.0, "rate of the critics, ten times that of the actors; 0 for the paper's (table 7)", low=0
    )
    warmup: int = option(35, "rounds of random actions before the agents decide", low=0)
    explore: int = option(500, "rounds over which the agents' noise fades after the warm-up", low=0)
    replay: int = option(1000, "transitions that an agent remembers; it sees one per round", low=1)
    agent_batch: int = option(32, "transitions in an agent's update", low=1)
    window: int = option(
        50, "rounds in each of the two windows that must agree for the game to end; 0 for never", low=0
    )
    tolerance: float = option(0.01, "relative change of the utilities between the windows that counts as none", low=0)

    @property
    def reports(self) -> Mapping[str, Range]:  # type: ignore[override]
        told = {"received_loss": LOSS, "trained_loss": LOSS, "trained_acc": SHARE, "error": SHARE}
        return {**super().reports, **told, **shared.REPORTS}

    @cached_property
    def factors(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.adapt.split(",") if name.strip())

    @cached_property
    def own(self) -> tuple[str, ...]:
        """What a client's agent decides."""
        return tuple(name for name in FACTORS[:2] if name in self.factors)

    @property
    def split(self) -> str:
        """The clients' data on which states and rewards are measured."""
        return "val"

    def check(self, task: Task, training: Training) -> None:
        unknown = [name for name in self.factors if name not in FACTORS]
        if unknown or not self.factors:
            raise UsageError(f"adapt is '{self.adapt}': must be a list of {', '.join(FACTORS)}")
        if not self.lr_low < self.lr_high:
            raise UsageError(f"lr_low is {self.lr_low}: must be below lr_high ({self.lr_high})")
        if self.split == "val" and not task.has("val"):
            raise UsageError(
                f"{self.name} rewards its agents on validation data, and task '{task.name}' has none: set val_share"
            )
        super().check(task, training)
        if "p" in self.factors:
            self.needs_free_weights(task)

    def agent(self, task: Task, **more: Any) -> Config:
        """A player's agent at the rates of table 7."""
        rate = self.agent_rate or TABLE_7.get(task.name, TABLE_7["synthetic"])
        how = {"batch": self.agent_batch, "capacity": self.replay, "warmup": self.warmup, "fade": self.explore}
        return Config(critic_lr=rate, actor_lr=rate / 10, target_rate=rate, **{**how, **more})

    def train_of(self, action: Tensor, train: Train) -> Train:
        """The decision that a client's action stands for; what its agent does not decide stays as configured."""
        chosen = dict(zip(self.own, action, strict=True))
        epochs = epochs_of(chosen["alpha"], self.epochs_most) if "alpha" in chosen else train.epochs
        lr = rate_of(chosen["eta"], self.lr_low, self.lr_high) if "eta" in chosen else train.lr
        return Train(epochs, lr)

    def server_init(self, task: Task, params: Tree) -> State:
        return super().server_init(task, params) | {"history": settle.empty(self.window)}

    def utilities(self, s: Server, up: Up) -> State:
        """The history with this round's utilities, global and local."""
        newest, history = settle.record(
            s.state["history"], up.metrics["received_loss"], up.metrics["trained_loss"], LEAST
        )
        s.notes |= {"log_utility_global": newest[0], "log_utility_local": newest[1]}
        return history

    def stop(self, s: Server) -> str | None:
        if settle.settled(s.state["history"], self.tolerance, self.warmup):
            return "equilibrium: global and local utility stopped evolving"
        return super().stop(s)
