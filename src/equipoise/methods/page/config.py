"""PAGE's options, the variants of its game, and the maps from actions to decisions.

The paper leaves open what an action means and which utility a round pays. A `GameVariant` is one
answer, and option `reading` names it. An agent's action always lies in [-1, 1]; the functions at
the top of this file turn it into epochs, a learning rate or aggregation weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equipoise.core import Method, Task, TrainingConfig, option
from equipoise.methods._composition import ComposedMethod
from equipoise.methods.page import energy
from equipoise.rl import ddpg
from equipoise.utils.errors import UsageError

# The largest factor by which a relative action changes the configured value.
MAX_EPOCHS_FACTOR = 2.0
MAX_LR_FACTOR = 10.0
MAX_WEIGHT_FACTOR = 1.5

MIN_LOSS = 0.01
"""Losses below count as this: validation sets are small, and 1/f would be unbounded."""
ERROR_OFFSET = 0.02
"""Added to a client's error rate, so that a client without errors still has a weight."""
CRITIC_LR = {"synthetic": 0.01, "cifar100": 0.05, "tinyimagenet": 0.001, "shakespeare": 0.005}
"""Table 7: the critics' learning rate by task. The actors' is a tenth of it, beta the same."""
NOISE_DECAY_ROUNDS = 500
"""Rounds over which the exploration noise of the paper's agents decays to zero."""
FACTORS = ("alpha", "eta", "p")
"""The balance-controlling factors: epochs, learning rate, aggregation weights."""


# ------------------------------------------------------------------------ from actions to decisions


def absolute_epochs(action: Tensor, max_epochs: int) -> Tensor:
    """Map [-1, 1] to 1..max_epochs in bins of equal width."""
    return (1 + ((action + 1) / 2 * max_epochs).floor().clamp(0, max_epochs - 1)).long()


def absolute_lr(action: Tensor, lr_min: float, lr_max: float) -> Tensor:
    """Map [-1, 1] to [lr_min, lr_max] on a log scale; 0 is the geometric mean."""
    return lr_min * torch.exp((action + 1) / 2 * math.log(lr_max / lr_min))


def relative_epochs(action: Tensor, configured: Tensor, max_epochs: int) -> Tensor:
    """Return half to twice the configured epochs, at most `max_epochs` or the configured."""
    upper = configured.clamp(min=max_epochs)
    epochs = (configured * MAX_EPOCHS_FACTOR**action).round().clamp(min=1)
    return torch.minimum(epochs, upper).long()


def relative_lr(action: Tensor, configured: Tensor, lr_min: float, lr_max: float) -> Tensor:
    """Return a tenth to ten times the configured rate, within the bounds unless it is outside."""
    lower = configured.clamp(max=lr_min)
    upper = configured.clamp(min=lr_max)
    return torch.minimum(torch.maximum(configured * MAX_LR_FACTOR**action, lower), upper)


def softmax_weights(action: Tensor, base: float = 10.0) -> Tensor:
    """Return weights `[..., K]` proportional to `base ** action`: positive, with sum 1."""
    return torch.softmax(action * math.log(base), -1)


def error_exponent(action: Tensor) -> Tensor:
    """Map [-1, 1] to kappa in [0, 1]; 0 is one half."""
    return 0.5 + 0.5 * action


def clipped_action(action: Tensor, lr_min: float, lr_max: float) -> Tensor:
    """Return (a + 1) / 2 clipped to the learning rates, as the authors' code does.

    Every action above 2 lr_max - 1 means lr_max: an untrained actor is in that corner.
    """
    return ((action + 1) / 2).clamp(lr_min, lr_max)


def parse_log10_bias(bias: str) -> float:
    """Return log10(server / clients) of a ratio like `10:1`."""
    server, _, clients = bias.partition(":")
    return math.log10(float(server) / float(clients))


# ------------------------------------------------------------------------------------- the variants


@dataclass(frozen=True)
class GameVariant:
    """One reading of the paper: what actions mean and what is paid."""

    relative_actions: bool = True
    """If True, actions scale the configured epochs and learning rate (0 = unchanged). If False,
    they cover the paper's full range and start at random."""
    exponent_weights: bool = True
    """If True, the server's action is one exponent kappa: p_i ~ n_i e_i^kappa, where e_i is the
    error of W(t) at client i. If False, it is one weight per client."""
    reward_is_improvement: bool = True
    """If True, a reward is the decrease of the log loss in this round, without discounted future.
    If False, it is the paper's utility u = 1 / f, discounted with gamma = 0.99."""
    authors_code: bool = False
    """If True, follow the authors' code: clipped actions, test data, no standardisation."""

    @property
    def gamma(self) -> float:
        """The agents' discount factor."""
        return 0.0 if self.reward_is_improvement else 0.99

    @property
    def split(self) -> str:
        """The clients' data on which states and rewards are measured."""
        return "test" if self.authors_code else "val"

    @property
    def server_split(self) -> str:
        """The server's data D_CS on which models are measured."""
        return "test" if self.authors_code else "public"

    def stored_action(self, action: Tensor, lr_min: float, lr_max: float) -> Tensor:
        """Return an action as the replay buffer stores it; the authors' code stores it clipped."""
        return clipped_action(action, lr_min, lr_max) if self.authors_code else action

    def epochs(self, action: Tensor, configured: Tensor, max_epochs: int, lr_max: float) -> Tensor:
        """Return alpha_i. In the authors' code a clipped action is at most `lr_max`."""
        if self.authors_code:
            return (action / lr_max * max_epochs).round().clamp(min=1).long()
        if self.relative_actions:
            return relative_epochs(action, configured, max_epochs)
        return absolute_epochs(action, max_epochs)

    def lr(self, action: Tensor, configured: Tensor, lr_min: float, lr_max: float) -> Tensor:
        """Return eta_i."""
        if self.authors_code:
            return action
        if self.relative_actions:
            return relative_lr(action, configured, lr_min, lr_max)
        return absolute_lr(action, lr_min, lr_max)

    def weights(
        self, action: Tensor, configured: Tensor, error: Tensor | None, log10_bias: float
    ) -> Tensor:
        """Return p(t).

        Args:
            action: The server's action: `[1]` with `exponent_weights`, else `[K]`.
            configured: The weights of the base method `[K]`.
            error: e_i, the error of W(t) at each client `[K]`; None if it does not count.
            log10_bias: Option `bias` as a power of ten; above 0 it adds to the exponent of e_i.

        Returns:
            Weights `[K]` with sum 1.
        """
        p = configured
        kappa: Tensor | float = 0.0
        if self.exponent_weights:
            kappa = error_exponent(action)
        elif self.relative_actions:
            p = configured * softmax_weights(action, MAX_WEIGHT_FACTOR)
            p = p / p.sum()
        else:
            p = softmax_weights(action)
        if error is None:
            return p
        p = p * (error + ERROR_OFFSET) ** (kappa + max(0.0, log10_bias))
        return p / p.sum()

    def reward(self, loss_before: Tensor, loss_after: Tensor, log10_bias: float) -> Tensor:
        """Return r(t) from the losses before and after a player's move.

        Args:
            loss_before: The loss of the model that the player received.
            loss_after: f_i of the client's trained model, or F of the server's aggregate.
            log10_bias: Option `bias` as a power of ten, above 0 if it favours this player. It
                scales rewards in the authors' code only; standardised rewards do not see a scale.

        Returns:
            log f(before) - log f(after), or the utility u = 1 / f(after).
        """
        if self.reward_is_improvement:
            return loss_before.clamp(min=MIN_LOSS).log() - loss_after.clamp(min=MIN_LOSS).log()
        scale = 10.0 ** max(0.0, log10_bias) if self.authors_code else 1.0
        return scale / loss_after.clamp(min=MIN_LOSS)


_PAPER = {"relative_actions": False, "exponent_weights": False, "reward_is_improvement": False}
VARIANTS = {
    "relative": GameVariant(),
    "paper": GameVariant(**_PAPER),
    "authors-code": GameVariant(**_PAPER, authors_code=True),
}
"""The values of option `reading`."""


# -------------------------------------------------------------------------------------- the options


@dataclass(frozen=True)
class PageConfig(ComposedMethod):
    """PAGE's options, and what follows from them."""

    reading: str = option(
        "relative",
        "how the paper's game is read: what actions mean and what is paid",
        choices=tuple(VARIANTS),
    )
    agents: str = option(
        "shared",
        "one agent that all clients share, or one for each",
        choices=("shared", "per-client"),
    )
    control: str = option(
        "learned",
        "who decides: agents that learn; to compare, zero (where they start) or random",
        choices=("learned", "zero", "random"),
    )
    controls: str = option(
        "alpha,eta,p", "what agents decide: any of alpha (epochs), eta (rate), p (weights)"
    )
    max_epochs: int = option(20, "largest number of epochs that an agent may choose", low=1)
    lr_min: float = option(0.001, "smallest rate that an agent may choose", above=0)
    lr_max: float = option(0.1, "largest rate that an agent may choose", above=0)
    agent_rate: float = option(
        0.0, "rate of the critics, ten times that of the actors; 0 for the paper's (table 7)", low=0
    )
    warmup: int = option(
        35,
        "rounds before agents learn, at most a tenth of the run if actions are relative; "
        "else actions are random in these rounds",
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
    energy_budget: str = option(
        "",
        "energy budget of the clients: 'default', 'devices' (by the profiles of the run's "
        "devices) or a TOML file of ranges; empty for none",
    )
    dual_lr: float = option(
        0.5, "learning rate of the Lagrangian multipliers under an energy budget", above=0
    )

    @cached_property
    def variant(self) -> GameVariant:
        """The reading of the game."""
        return VARIANTS[self.reading]

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """The factors that agents decide, out of `FACTORS`."""
        return tuple(name.strip() for name in self.controls.split(",") if name.strip())

    @cached_property
    def client_actions(self) -> tuple[str, ...]:
        """The factors that a client's agent decides."""
        return tuple(name for name in ("alpha", "eta") if name in self.factors)

    @cached_property
    def energy_ranges(self) -> energy.EnergyRanges:
        """The ranges of the energy model's parameters."""
        return energy.read_ranges(self.energy_budget)

    @cached_property
    def log10_bias(self) -> float:
        """Option `bias` as a power of ten; above 0 it favours the server."""
        return parse_log10_bias(self.bias)

    @property
    def uses_errors(self) -> bool:
        """Whether weights depend on the error of W(t) at the clients."""
        bias_acts_on_weights = self.log10_bias > 0 and not self.variant.authors_code
        return "p" in self.factors and (self.variant.exponent_weights or bias_acts_on_weights)

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse options that do not fit together, or to the task."""
        unknown = [name for name in self.factors if name not in FACTORS]
        if unknown or not self.factors:
            raise UsageError(
                f"controls is '{self.controls}': must be a list of {', '.join(FACTORS)}"
            )
        if not self.lr_min < self.lr_max:
            raise UsageError(f"lr_min is {self.lr_min}: must be below lr_max ({self.lr_max})")
        if self.agents == "shared" and self.variant.authors_code:
            raise UsageError(
                "the reading authors-code has one agent for each client: add --agents per-client"
            )
        if self.variant.split == "val" and not task.has_split("val"):
            raise UsageError(
                f"{self.name} rewards its agents on validation data, and task "
                f"'{task.info.name}' has "
                "none: set val_share"
            )
        super().check(task, training)
        if "p" in self.factors:
            self.require_free_weights(task)
        _check_bias(self.bias, self.factors, self.inner, self.variant.authors_code)
        energy.check(self.energy_budget, self.client_actions)

    def agent_config(self, task: Task, num_rounds: int = 0) -> ddpg.Config:
        """Return the hyper-parameters of an agent.

        Args:
            task: The task, which decides the learning rates (table 7).
            num_rounds: Rounds of the run. With relative actions an agent starts at the configured
                values, without random actions, and its noise decays over the whole run.

        Returns:
            The configuration.
        """
        rate = self.agent_rate or CRITIC_LR.get(task.info.name, CRITIC_LR["synthetic"])
        options: dict[str, Any] = {
            "learning_starts": self.warmup,
            "noise_decay_steps": NOISE_DECAY_ROUNDS,
        }
        if self.variant.relative_actions:
            options = {"learning_starts": 0, "noise_decay_steps": num_rounds, "sigma": 0.1}
        if self.variant.authors_code:
            options |= {"normalise": False, "pretanh_l2": 0.0}
        return ddpg.Config(
            critic_lr=rate, actor_lr=rate / 10, tau=rate, gamma=self.variant.gamma, **options
        )

    def learning_starts(self, num_rounds: int) -> int:
        """Return the rounds before agents learn; few suffice if they start at configured values."""
        if self.variant.relative_actions:
            return min(self.warmup, num_rounds // 10)
        return self.warmup


def _check_bias(bias: str, factors: tuple[str, ...], base: Method, scales_rewards: bool) -> None:
    """Refuse what is no ratio, or a bias to a side that has no means to follow it."""
    try:
        power = parse_log10_bias(bias)
    except (ValueError, ZeroDivisionError):
        power = math.inf
    if not abs(power) <= 2:
        raise UsageError(f"bias is '{bias}': must be a ratio like 10:1, from 1:100 to 100:1")
    if scales_rewards:
        return
    if power > 0 and "p" not in factors:
        raise UsageError(
            f"bias {bias} acts through the weights: let the server decide them (--controls ...,p)"
        )
    if power < 0 and "personal_model" in base.overridden_hooks:
        raise UsageError(
            f"bias {bias} fine-tunes personal models, but '{base.name}' makes personal models "
            "itself: choose another --base"
        )
