"""PAGE's options, what follows from them, and what is refused; the game itself is in page.py."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from equipoise.contract import Task, TrainingConfig, option
from equipoise.core.errors import UsageError
from equipoise.learners.ddpg import Config
from equipoise.methods.over import ComposedMethod
from equipoise.methods.page import energy, leaning
from equipoise.methods.page.readings import READINGS, Reading

TABLE_7 = {"synthetic": 0.01, "cifar100": 0.05, "tinyimagenet": 0.001, "shakespeare": 0.005}
"""The critics' rate by task. In every column the actors take a tenth of it, and the target nets follow at it."""
FACTORS = ("alpha", "eta", "p")
CONTROLS = ("learned", "zero", "random")
FADE = 500  # rounds over which the paper's agents cease to explore


@dataclass(frozen=True)
class Game(ComposedMethod):
    """Who plays, what may be chosen, how the game is read and when it ends."""

    reading: str = option(
        "relative", "how the paper's game is read: what actions mean and what is paid", choices=tuple(READINGS)
    )
    agents: str = option("shared", "one agent that all clients share, or one for each", choices=("shared", "each"))
    control: str = option(
        "learned", "who decides: agents that learn; to compare, zero (where they start) or random", choices=CONTROLS
    )
    adapt: str = option("alpha,eta,p", "what agents decide: any of alpha (epochs), eta (rate), p (weights)")
    epochs_most: int = option(20, "largest number of epochs that an agent may choose", low=1)
    lr_low: float = option(0.001, "smallest rate that an agent may choose", above=0)
    lr_high: float = option(0.1, "largest rate that an agent may choose", above=0)
    agent_rate: float = option(
        0.0, "rate of the critics, ten times that of the actors; 0 for the paper's (table 7)", low=0
    )
    warmup: int = option(
        35, "rounds before agents learn, a tenth of the run at most; of random actions where they span the box", low=0
    )
    window: int = option(
        50, "rounds in each of the two windows that must agree for the game to end; 0 for never", low=0
    )
    tolerance: float = option(0.01, "relative change of the utilities between the windows that counts as none", low=0)
    bias: str = option("1:1", "weight of the global against the local model, as 10:1 or 1:10")
    resources: str = option(
        "",
        "energy budget of the clients: 'default', 'devices' (by the profiles of the run's devices) or a TOML file of "
        "ranges; empty for none",
    )
    multiplier_rate: float = option(0.5, "rate of the Lagrangian multipliers under an energy budget", above=0)

    @cached_property
    def read(self) -> Reading:
        return READINGS[self.reading]

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
        """Of the bias, in powers of ten."""
        return leaning.lean(self.bias)

    @property
    def weighs_errors(self) -> bool:
        """By the server's exponent, or by a bias to its side, which in the authors' code scales rewards instead."""
        return "p" in self.factors and (self.read.exponent or (self.lean > 0 and not self.read.published))

    def check(self, task: Task, training: TrainingConfig) -> None:
        unknown = [name for name in self.factors if name not in FACTORS]
        if unknown or not self.factors:
            raise UsageError(f"adapt is '{self.adapt}': must be a list of {', '.join(FACTORS)}")
        if not self.lr_low < self.lr_high:
            raise UsageError(f"lr_low is {self.lr_low}: must be below lr_high ({self.lr_high})")
        if self.agents == "shared" and self.read.published:
            raise UsageError("the reading authors-code has one agent for each client: add --agents each")
        if self.read.split == "val" and not task.has_split("val"):
            raise UsageError(
                f"{self.name} rewards its agents on validation data, and task '{task.name}' has none: set val_share"
            )
        super().check(task, training)
        if "p" in self.factors:
            self.needs_free_weights(task)
        leaning.check(self.bias, self.factors, self.inner, self.read.published)
        energy.check(self.resources, self.own)

    def agent(self, task: Task, rounds: int = 0) -> Config:
        """A player's agent at the rates of table 7. Around what is configured it starts there, else at random."""
        rate = self.agent_rate or TABLE_7.get(task.name, TABLE_7["synthetic"])
        how: dict[str, Any] = {"gamma": self.read.gamma, "warmup": self.warmup, "fade": FADE}
        if self.read.around:
            how |= {"warmup": 0, "fade": rounds, "sigma": 0.1}
        if self.read.published:
            how |= {"normalise": False, "restraint": 0.0}
        return Config(critic_lr=rate, actor_lr=rate / 10, target_rate=rate, **how)

    def waits(self, rounds: int) -> int:
        """Rounds before the agents learn; where they start from the configured values, few are enough."""
        return min(self.warmup, rounds // 10) if self.read.around else self.warmup
