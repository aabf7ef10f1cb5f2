"""PAGE's options, the readings of its game, and the maps from actions to epochs, rates and weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equipoise.core import (
    Method,
    Task,
    TrainingConfig,
    option,
)
from equipoise.methods._composition import ComposedMethod
from equipoise.methods.page import energy
from equipoise.rl.ddpg import Config
from equipoise.utils.errors import UsageError

NEAR_EPOCHS, NEAR_RATE, NEAR_WEIGHT = (
    2.0,
    10.0,
    1.5,
)  # the largest factor by which an action moves what is configured


TABLE_7 = {"synthetic": 0.01, "cifar100": 0.05, "tinyimagenet": 0.001, "shakespeare": 0.005}
"""The critics' rate by task. In every column the actors take a tenth of it, and the target nets follow at it."""


def epochs_of(action: Tensor, most: int) -> Tensor:
    """1 .. ``most``, in bins of one width."""
    return (1 + ((action + 1) / 2 * most).floor().clamp(0, most - 1)).long()


def rate_of(action: Tensor, low: float, high: float) -> Tensor:
    """``low`` .. ``high`` on a log scale: -1, 0, 1 are the ends and their geometric mean."""
    return low * torch.exp((action + 1) / 2 * math.log(high / low))


def epochs_near(action: Tensor, configured: Tensor, most: int) -> Tensor:
    """Half to twice as many as configured, at most ``most`` unless more are configured."""
    most_here = configured.clamp(min=most)
    return torch.minimum((configured * NEAR_EPOCHS**action).round().clamp(min=1), most_here).long()


def rate_near(action: Tensor, configured: Tensor, low: float, high: float) -> Tensor:
    """A tenth to ten times the configured rate, kept between ``low`` and ``high`` unless it lies outside itself."""
    least, most = configured.clamp(max=low), configured.clamp(min=high)
    return torch.minimum(torch.maximum(configured * NEAR_RATE**action, least), most)


def simplex(action: Tensor, span: float = 10.0) -> Tensor:
    """Weights that sum to one, all above zero: proportional to ``span ** action``."""
    return torch.softmax(action * math.log(span), -1)


def exponent_of(action: Tensor) -> Tensor:
    """kappa in [0, 1], one half at zero."""
    return 0.5 + 0.5 * action


def published(action: Tensor, low: float, high: float) -> Tensor:
    """The map of the authors' code: (tanh + 1)/2 *clipped* to the range of rates, so that half of it means ``high``."""
    return ((action + 1) / 2).clamp(low, high)


LEAST_ERROR = 0.02  # a client without errors still counts
LEAST = 0.01  # losses below count as this: validation sets are small, and 1/f would have no bound


@dataclass(frozen=True)
class Reading:
    """One way to read the paper; by default the one under which the game helps."""

    around: bool = True
    """Actions move what is configured, and zero leaves it alone; else they span the paper's whole box, from a random
    start."""
    exponent: bool = True
    """The server's action is one exponent, p_i ~ n_i e_i^kappa with e_i the received model's error at the client; else
    one weight for each client."""
    difference: bool = True
    """A player is paid what the round improved, in log loss, and looks no further; an agent that clients share learns
    from what one gained more than the others. Else the level 1/f, discounted."""
    published: bool = False
    """As in the authors' code: clipped actions, test data, nothing standardised."""

    @property
    def gamma(self) -> float:
        return 0.0 if self.difference else 0.99

    @property
    def split(self) -> str:
        """The clients' data on which states and rewards are measured."""
        return "test" if self.published else "val"

    def kept(self, action: Tensor, low: float, high: float) -> Tensor:
        """An action as its agent remembers it: the authors' code keeps it clipped, and feeds unclipped ones."""
        return published(action, low, high) if self.published else action

    def epochs(self, action: Tensor, configured: Tensor, most: int, high: float) -> Tensor:
        """alpha_i; in the authors' code an action lies within the rates, of which ``high`` is the largest."""
        if self.published:
            return (action / high * most).round().clamp(min=1).long()
        return epochs_near(action, configured, most) if self.around else epochs_of(action, most)

    def rate(self, action: Tensor, configured: Tensor, low: float, high: float) -> Tensor:
        """eta_i."""
        if self.published:
            return action
        return (
            rate_near(action, configured, low, high) if self.around else rate_of(action, low, high)
        )

    def weights(
        self, action: Tensor, configured: Tensor, error: Tensor | None, lean: float
    ) -> Tensor:
        """p; where errors e_i count, times e_i^(kappa + lean) with the action's kappa and a bias to the server."""
        p, kappa = configured, exponent_of(action) if self.exponent else 0.0
        if not self.exponent:
            near = configured * simplex(action, NEAR_WEIGHT)
            p = near / near.sum() if self.around else simplex(action)
        if error is None:
            return p
        p = p * (error + LEAST_ERROR) ** (kappa + max(0.0, lean))
        return p / p.sum()

    def paid(self, before: Tensor, after: Tensor, lean: float) -> Tensor:
        """r(t) from the losses before and after a move: by how much its logarithm fell, or the level u = 1 / f.

        In the authors' code a bias that leans to the player's side scales it.
        """
        if self.difference:
            return before.clamp(min=LEAST).log() - after.clamp(min=LEAST).log()
        return (10.0 ** max(0.0, lean) if self.published else 1.0) / after.clamp(min=LEAST)


READINGS = {
    "relative": Reading(),
    "paper": Reading(around=False, exponent=False, difference=False),
    "authors-code": Reading(around=False, exponent=False, difference=False, published=True),
}


FACTORS = ("alpha", "eta", "p")
CONTROLS = ("learned", "zero", "random")
FADE = 500  # rounds over which the paper's agents cease to explore


def lean(bias: str) -> float:
    server, _, clients = bias.partition(":")
    return math.log10(float(server) / float(clients))


def check_bias(bias: str, decided: tuple[str, ...], below: Method, scales_rewards: bool) -> None:
    """Refuse what is no ratio, and a side that has nothing to lean with; scaled rewards lean with nothing else."""
    try:
        power = lean(bias)
    except (ValueError, ZeroDivisionError):
        power = math.inf
    if not abs(power) <= 2:
        raise UsageError(f"bias is '{bias}': must be a ratio like 10:1, from 1:100 to 100:1")
    if power > 0 and "p" not in decided and not scales_rewards:
        raise UsageError(
            f"bias {bias} acts through the weights: let the server decide them (--adapt ...,p)"
        )
    if power < 0 and "personal_model" in below.overridden_hooks and not scales_rewards:
        raise UsageError(
            f"bias {bias} gives clients a last touch of their models, but '{below.name}' makes personal models "
            "itself: choose another --base"
        )


@dataclass(frozen=True)
class Game(ComposedMethod):
    """Who plays, what may be chosen, how the game is read and when it ends."""

    reading: str = option(
        "relative",
        "how the paper's game is read: what actions mean and what is paid",
        choices=tuple(READINGS),
    )
    agents: str = option(
        "shared",
        "one agent that all clients share, or one for each",
        choices=("shared", "per-client"),
    )
    control: str = option(
        "learned",
        "who decides: agents that learn; to compare, zero (where they start) or random",
        choices=CONTROLS,
    )
    adapt: str = option(
        "alpha,eta,p", "what agents decide: any of alpha (epochs), eta (rate), p (weights)"
    )
    epochs_most: int = option(20, "largest number of epochs that an agent may choose", low=1)
    lr_low: float = option(0.001, "smallest rate that an agent may choose", above=0)
    lr_high: float = option(0.1, "largest rate that an agent may choose", above=0)
    agent_rate: float = option(
        0.0, "rate of the critics, ten times that of the actors; 0 for the paper's (table 7)", low=0
    )
    warmup: int = option(
        35,
        "rounds before agents learn, a tenth of the run at most; of random actions where they span the box",
        low=0,
    )
    window: int = option(
        50,
        "rounds in each of the two windows that must agree for the game to end; 0 for never",
        low=0,
    )
    tolerance: float = option(
        0.01, "relative change of the utilities between the windows that counts as none", low=0
    )
    bias: str = option("1:1", "weight of the global against the local model, as 10:1 or 1:10")
    resources: str = option(
        "",
        "energy budget of the clients: 'default', 'devices' (by the profiles of the run's devices) or a TOML file of "
        "ranges; empty for none",
    )
    multiplier_rate: float = option(
        0.5, "rate of the Lagrangian multipliers under an energy budget", above=0
    )

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
        return lean(self.bias)

    @property
    def weighs_errors(self) -> bool:
        """By the server's exponent, or by a bias to its side, which in the authors' code scales rewards instead."""
        return "p" in self.factors and (
            self.read.exponent or (self.lean > 0 and not self.read.published)
        )

    def check(self, task: Task, training: TrainingConfig) -> None:
        unknown = [name for name in self.factors if name not in FACTORS]
        if unknown or not self.factors:
            raise UsageError(f"adapt is '{self.adapt}': must be a list of {', '.join(FACTORS)}")
        if not self.lr_low < self.lr_high:
            raise UsageError(f"lr_low is {self.lr_low}: must be below lr_high ({self.lr_high})")
        if self.agents == "shared" and self.read.published:
            raise UsageError(
                "the reading authors-code has one agent for each client: add --agents per-client"
            )
        if self.read.split == "val" and not task.has_split("val"):
            raise UsageError(
                f"{self.name} rewards its agents on validation data, and task '{task.name}' has none: set val_share"
            )
        super().check(task, training)
        if "p" in self.factors:
            self.needs_free_weights(task)
        check_bias(self.bias, self.factors, self.inner, self.read.published)
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
