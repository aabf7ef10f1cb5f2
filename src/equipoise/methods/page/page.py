"""PAGE: personalisation and generalisation as a Stackelberg game between clients and server.

"PAGE: Equilibrate Personalization and Generalization in Federated Learning", WWW 2024. The clients
lead, the server follows, and each of them is a DDPG agent. A round has the steps of section 4.4:

  1. The server sends W(t) (`distribute`).
  2. Client i observes s_i(t) (`client_observation`), and its agent chooses a_i(t) =
     [alpha_i, eta_i], epochs and learning rate (`client_action`; section 4.3, algorithm 2).
  3. Client i trains: w_i = Train(eta_i, alpha_i; W(t)), equation (4) (the base method's `train`).
  4. Client i uploads w_i (`upload`) and is paid r_i(t) = u_i = 1 / f_i(w_i), definition 1
     (`client_reward`).
  5. The server observes s_CS(t), and its agent chooses a_CS(t) = p(t) = [p_1, ..., p_N]
     (`aggregation_weights`; section 4.2, algorithm 1).
  6. W(t+1) = sum_i p_i w_i, equation (5) (`aggregate`); the server is paid r_CS(t) = u_CS =
     1 / F(W(t+1)), where F is sum_i p_i f_i(w_i) by equation (1) (`server_reward`).

f_i is the loss on the data of client i, and w_i is the trained model, the paper's w-hat_i.

Agents of their own learn in steps 2 and 5, just before they act, as in the paper. The agent that
all clients share, which the paper does not have, learns after step 6 (`learn`). The game ends when
both utilities stop changing (`should_stop`).

An agent's action is in [-1, 1]. A `GameVariant` says what actions mean and what is paid: by default
our reading, in which actions change the configured values, else the paper's or that of the authors'
code. The policies of clients and server are in agents.py, energy budgets (appendix D) in energy.py.

The file has four sections: from actions to decisions, the variants, the method in the order of a
round, and the end of the game.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Required, TypedDict

import torch
from torch import Tensor

from equipoise.core import (
    Capabilities,
    Client,
    ClientUpdate,
    LocalHParams,
    Method,
    Params,
    Server,
    ServerMessage,
    State,
    Task,
    TrainingConfig,
    ValueRange,
    option,
)
from equipoise.core.method import hparams_like
from equipoise.core.report_validation import FRACTION, LOSS, winsorize
from equipoise.methods._composition import ComposedMethod
from equipoise.methods.page import energy
from equipoise.methods.page.agents import (
    NOISE_DECAY_ROUNDS,
    REPORT_RANGES,
    ClientPolicy,
    PlayerState,
    ServerPolicy,
    SharedPlayerState,
    make_client_policy,
    make_server_policy,
    set_last_transition,
)
from equipoise.methods.page.energy import EnergyState
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
AUTHORS_CRITIC_LR = {"synthetic": 0.005}
"""The same in the authors' code, where it is known to differ."""
LR_RANGE = {
    "synthetic": (0.001, 0.1),
    "cifar100": (0.01, 0.2),
    "tinyimagenet": (0.001, 0.1),
    "shakespeare": (0.01, 1.0),
}
"""The learning rates in G_i by task, as the authors' code has them; else those of Synthetic."""
AUTHORS_MAX_GRAD_NORM = 10.0
"""The authors' clients clip gradients to this norm."""
AUTHORS_LOSS_OFFSET = 1e-5
"""The authors' code pays 1 / (f + this)."""
AUTHORS_NOISE_DT = 0.01
"""Time step of the Ornstein-Uhlenbeck noise in the authors' code."""
FINETUNE_EPOCHS = 5
"""Epochs of fine-tuning of a personal model per power of ten of bias to the clients."""
MODEL_REPORTS = {
    "received_loss": LOSS,
    "trained_loss": LOSS,
    "trained_acc": FRACTION,
    "error": FRACTION,
}
"""What clients report of their models, and the valid ranges."""
FACTORS = ("alpha", "eta", "p")
"""The balance-controlling factors: epochs, learning rate, aggregation weights."""


# ------------------------------------------------------------------------ from actions to decisions


def absolute_epochs(action: Tensor, max_epochs: int) -> Tensor:
    """Map [-1, 1] to 1..max_epochs in bins of equal width."""
    return (1 + ((action + 1) / 2 * max_epochs).floor().clamp(0, max_epochs - 1)).long()


def absolute_lr(action: Tensor, lr_min: float, lr_max: float) -> Tensor:
    """Map [-1, 1] to [lr_min, lr_max] on a log scale; 0 is the geometric mean.

    Args:
        action: The agent's action in [-1, 1].
        lr_min: The smallest rate.
        lr_max: The largest rate.
    """
    return lr_min * torch.exp((action + 1) / 2 * math.log(lr_max / lr_min))


def relative_epochs(action: Tensor, configured: Tensor, max_epochs: int) -> Tensor:
    """Return half to twice the configured epochs, at most `max_epochs` or the configured.

    Args:
        action: The agent's action in [-1, 1].
        configured: Epochs that the run configures.
        max_epochs: The most epochs that an agent may choose.
    """
    upper = configured.clamp(min=max_epochs)
    epochs = (configured * MAX_EPOCHS_FACTOR**action).round().clamp(min=1)
    return torch.minimum(epochs, upper).long()


def relative_lr(action: Tensor, configured: Tensor, lr_min: float, lr_max: float) -> Tensor:
    """Return a tenth to ten times the configured rate, within the bounds unless it is outside.

    Args:
        action: The agent's action in [-1, 1].
        configured: Learning rate that the run configures.
        lr_min: The smallest rate.
        lr_max: The largest rate.
    """
    lower = configured.clamp(max=lr_min)
    upper = configured.clamp(min=lr_max)
    return torch.minimum(torch.maximum(configured * MAX_LR_FACTOR**action, lower), upper)


def softmax_weights(action: Tensor, base: float = 10.0) -> Tensor:
    """Return weights `[..., K]` proportional to `base ** action`: positive, with sum 1."""
    return torch.softmax(action * math.log(base), -1)


def error_exponent(action: Tensor) -> Tensor:
    """Map [-1, 1] to kappa in [0, 1]; 0 is one half."""
    return 0.5 + 0.5 * action


def authors_box(action: Tensor, is_random: Tensor, lr_min: float, lr_max: float) -> Tensor:
    """Map actions to [lr_min, lr_max] as the authors' code does.

    It clips (a + 1) / 2: every action above 2 lr_max - 1 means lr_max, so an untrained actor is in
    that corner. Random actions of the warm-up are uniform over the range.

    Args:
        action: Actions in [-1, 1].
        is_random: A boolean `[]`: the actions are uniformly random.
        lr_min: Lower end of the range.
        lr_max: Upper end of the range.

    Returns:
        Numbers in the range, in the shape of `action`.
    """
    half = (action + 1) / 2
    return torch.where(is_random, lr_min + half * (lr_max - lr_min), half.clamp(lr_min, lr_max))


def authors_weights(action: Tensor) -> Tensor:
    """Return ((a + 1) / 2) / sum `[K]`, which may be 0 for some; equal weights if all are 0."""
    half = (action + 1) / 2
    total = half.sum()
    return torch.where(total > 0, half / total, torch.full_like(half, 1 / len(half)))


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
    they cover the whole range G_i and start at random."""
    exponent_weights: bool = True
    """If True, the server's action is one exponent kappa: p_i ~ n_i e_i^kappa, where e_i is the
    error of W(t) at client i. If False, it is one weight per client."""
    reward_is_improvement: bool = True
    """If True, a reward is the decrease of the log loss in this round, without discounted future.
    If False, it is the paper's utility u = 1 / f, discounted with gamma = 0.99."""
    authors_code: bool = False
    """If True, follow the authors' code: clipped actions, last round's states, test data, no
    standardisation, clipped gradients."""

    @property
    def gamma(self) -> float:
        """The agents' discount factor."""
        return 0.0 if self.reward_is_improvement else 0.99

    @property
    def server_split(self) -> str:
        """The server's data D_CS on which models are measured."""
        return "test" if self.authors_code else "public"

    def epochs(self, action: Tensor, configured: Tensor, max_epochs: int) -> Tensor:
        """Return alpha_i; the authors' code stores it as it is, unrounded.

        Args:
            action: The agent's action in [-1, 1].
            configured: Epochs that the run configures.
            max_epochs: The most epochs that an agent may choose.
        """
        if self.authors_code:
            return action.round().clamp(min=1).long()
        if self.relative_actions:
            return relative_epochs(action, configured, max_epochs)
        return absolute_epochs(action, max_epochs)

    def lr(self, action: Tensor, configured: Tensor, lr_min: float, lr_max: float) -> Tensor:
        """Return eta_i; the authors' code stores it as it is.

        Args:
            action: The agent's action in [-1, 1].
            configured: Learning rate that the run configures.
            lr_min: The smallest rate.
            lr_max: The largest rate.
        """
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
        if self.authors_code:
            return authors_weights(action)
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

    def reward(self, loss_before: Tensor, loss_after: Tensor) -> Tensor:
        """Return r(t) from the losses before and after a player's move.

        Args:
            loss_before: The loss of the model that the player received.
            loss_after: f_i of the client's trained model, or F of the server's aggregate.

        Returns:
            log f(before) - log f(after), or the utility u = 1 / f(after) of definition 1.
        """
        if self.authors_code:
            return 1 / (loss_after + AUTHORS_LOSS_OFFSET)
        if self.reward_is_improvement:
            return loss_before.clamp(min=MIN_LOSS).log() - loss_after.clamp(min=MIN_LOSS).log()
        return 1 / loss_after.clamp(min=MIN_LOSS)


_PAPER = {"relative_actions": False, "exponent_weights": False, "reward_is_improvement": False}
VARIANTS = {
    "relative": GameVariant(),
    "paper": GameVariant(**_PAPER),
    "authors-code": GameVariant(**_PAPER, authors_code=True),
}
"""The values of option `reading`."""


# --------------------------------------------------------------------------------------- the method


class PageClientState(TypedDict, total=False):
    """What a client keeps. Scalars `[]` in float64."""

    base: Required[State]
    """State of the base method."""
    received_loss: Required[Tensor]
    """f_i(W(t)), on the data that `Page.split` names."""
    received_error: Required[Tensor]
    """1 - accuracy of W(t) there, or on training data if weights depend on it."""
    trained_acc: Tensor
    """Accuracy of w_i in the client's last round; with `GameVariant.authors_code` only."""
    agent: PlayerState | SharedPlayerState
    """The client's player; without learning there is none."""
    energy: EnergyState
    """Cost, budget and multiplier; under an energy budget only."""


class PageServerState(TypedDict, total=False):
    """What the server keeps."""

    base: Required[State]
    """State of the base method."""
    history: Required[UtilityHistory]
    """Utilities of the last rounds."""
    client_agent: ddpg.AgentState
    """The agent that all clients share; with `SharedAgent` only."""
    server_agent: PlayerState
    """The server's player; without learning there is none."""


class UtilityHistory(TypedDict):
    """The utilities of the last rounds, on which the end of the game depends."""

    utilities: Tensor
    """Logarithms `[2 * window, 2]` of the global and the local utility, oldest first."""
    rounds: Tensor
    """Rounds so far."""


@dataclass(frozen=True)
class Page(ComposedMethod):
    """Epochs, learning rates and aggregation weights are chosen by agents; the rest by the base.

    A client's state is a `PageClientState`, the server's a `PageServerState`.
    """

    name: ClassVar[str] = "page"
    family: ClassVar[str] = "controller"

    reading: str = option(
        "relative",
        "how the paper's game is read: what actions mean and what is paid",
        choices=tuple(VARIANTS),
    )
    agents: str = option(
        "auto",
        "one agent that all clients share, or one for each; auto is shared in the reading "
        "relative and per-client in the others, as in the paper",
        choices=("auto", "shared", "per-client"),
    )
    control: str = option(
        "learned",
        "who decides: agents that learn; to compare, zero (where they start) or random",
        choices=("learned", "zero", "random"),
    )
    controls: str = option(
        "alpha,eta,p", "what agents decide: any of alpha (epochs), eta (rate), p (weights)"
    )
    measured_on: str = option(
        "val",
        "the clients' data on which states and rewards are measured: validation rows, or the "
        "training rows, the paper's D_i; the reading authors-code measures on test rows",
        choices=("val", "train"),
    )
    max_epochs: int = option(20, "largest number of epochs that an agent may choose", low=1)
    lr_min: float = option(
        0.0, "smallest rate that an agent may choose; 0 for the authors' of the task", low=0
    )
    lr_max: float = option(
        0.0, "largest rate that an agent may choose; 0 for the authors' of the task", low=0
    )
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

    # -------------------------------------------------------------------- what follows from options

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Return those of the base; the server's agent sees uploads in the round that asked."""
        return replace(
            self.inner.capabilities,
            needs_same_round_replies=True,
            aggregates_by_sum=False,
            needs_server_data=True,
        )

    @property
    def report_ranges(self) -> Mapping[str, ValueRange]:  # type: ignore[override]
        """The ranges of reports on models and of the shared agent's transitions."""
        return {**super().report_ranges, **MODEL_REPORTS, **REPORT_RANGES}

    @cached_property
    def variant(self) -> GameVariant:
        """The reading of the game."""
        return VARIANTS[self.reading]

    @property
    def shares_agent(self) -> bool:
        """Whether all clients share one agent."""
        if self.agents == "auto":
            return self.reading == "relative"
        return self.agents == "shared"

    @property
    def client_policy(self) -> ClientPolicy:
        """The leaders' policy."""
        return make_client_policy(self)

    @property
    def server_policy(self) -> ServerPolicy:
        """The follower's policy."""
        return make_server_policy(self)

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """The factors that agents decide, out of `FACTORS`."""
        return tuple(name.strip() for name in self.controls.split(",") if name.strip())

    @cached_property
    def client_actions(self) -> tuple[str, ...]:
        """The factors that a client's agent decides."""
        return tuple(name for name in ("alpha", "eta") if name in self.factors)

    @property
    def split(self) -> str:
        """The clients' data on which states and rewards are measured."""
        return "test" if self.variant.authors_code else self.measured_on

    @cached_property
    def energy_ranges(self) -> energy.EnergyRanges:
        """The ranges of the energy model's parameters."""
        return energy.read_ranges(self.energy_budget)

    @cached_property
    def log10_bias(self) -> float:
        """Option `bias` as a power of ten; above 0 it favours the server."""
        return parse_log10_bias(self.bias)

    @property
    def bias_scales_rewards(self) -> bool:
        """Whether `bias` scales rewards, as in the paper; improvements have no scale themselves."""
        return not self.variant.reward_is_improvement

    @property
    def uses_errors(self) -> bool:
        """Whether weights depend on the error of W(t) at the clients."""
        bias_acts_on_weights = self.log10_bias > 0 and not self.bias_scales_rewards
        return "p" in self.factors and (self.variant.exponent_weights or bias_acts_on_weights)

    def lr_range(self, task: Task) -> tuple[float, float]:
        """Return the smallest and the largest learning rate that an agent may choose."""
        lr_min, lr_max = LR_RANGE.get(task.info.name, LR_RANGE["synthetic"])
        return self.lr_min or lr_min, self.lr_max or lr_max

    def agent_config(self, task: Task, num_rounds: int = 0, is_server: bool = False) -> ddpg.Config:
        """Return the hyper-parameters of an agent.

        Args:
            task: The task, which decides the learning rates (table 7).
            num_rounds: Rounds of the run. With relative actions an agent starts at the configured
                values, without random actions, and its noise decays over the whole run.
            is_server: Whether it is the server's agent; `bias` scales one side's rewards.

        Returns:
            The configuration.
        """
        rates = CRITIC_LR | (AUTHORS_CRITIC_LR if self.variant.authors_code else {})
        rate = self.agent_rate or rates.get(task.info.name, rates["synthetic"])
        options: dict[str, Any] = {
            "learning_starts": self.warmup,
            "noise_decay_steps": NOISE_DECAY_ROUNDS,
        }
        if self.variant.relative_actions:
            options = {"learning_starts": 0, "noise_decay_steps": num_rounds, "sigma": 0.1}
        if self.variant.authors_code:
            options |= {"normalise": False, "pretanh_l2": 0.0, "noise_dt": AUTHORS_NOISE_DT}
        if self.bias_scales_rewards:
            log10_scale = self.log10_bias if is_server else -self.log10_bias
            options["reward_scale"] = 10.0 ** max(0.0, log10_scale)
        return ddpg.Config(
            critic_lr=rate, actor_lr=rate / 10, tau=rate, gamma=self.variant.gamma, **options
        )

    def learning_starts(self, num_rounds: int) -> int:
        """Return the rounds before agents learn; few suffice if they start at configured values."""
        if self.variant.relative_actions:
            return min(self.warmup, num_rounds // 10)
        return self.warmup

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse options that do not fit together, or to the task."""
        unknown = [name for name in self.factors if name not in FACTORS]
        if unknown or not self.factors:
            raise UsageError(
                f"controls is '{self.controls}': must be a list of {', '.join(FACTORS)}"
            )
        lr_min, lr_max = self.lr_range(task)
        if not lr_min < lr_max:
            raise UsageError(f"lr_min is {lr_min}: must be below lr_max ({lr_max})")
        if self.shares_agent and self.variant.authors_code:
            raise UsageError(
                "the reading authors-code has one agent for each client: leave --agents out, or "
                "set it to per-client"
            )
        if not task.has_split(self.split):
            raise UsageError(
                f"{self.name} rewards its agents on validation data, and task "
                f"'{task.info.name}' has none: set val_share"
            )
        super().check(task, training)
        if "p" in self.factors:  # the base must have one weight per client
            self.require_free_weights(task)
        _check_bias(self.bias, self.factors, self.inner, self.bias_scales_rewards)
        energy.check(self.energy_budget, self.client_actions)

    def init_client(self, task: Task, params: Params) -> State:
        """Return the state of a client that takes part for the first time."""
        zero = torch.zeros((), dtype=torch.float64)
        state: PageClientState = {
            "base": super().init_client(task, params)["base"],
            "received_loss": zero,
            "received_error": zero,
        }
        if self.variant.authors_code:
            state["trained_acc"] = zero
        if self.energy_budget:
            state["energy"] = energy.init_state()
        return {**state, **self.client_policy.init_client(task)}

    def init_server(self, task: Task, params: Params) -> State:
        """Return the server's state before the first round."""
        state: PageServerState = {
            "base": super().init_server(task, params)["base"],
            "history": init_history(self.window),
        }
        return {
            **state,
            **self.client_policy.init_server(task),
            **self.server_policy.init_server(task),
        }

    # ------------------------------------------------------------------------ step 1, at the server

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Send W(t), and the actor if clients share one."""
        message, state = super().distribute(server, ids)
        policy, state = self.client_policy.distribute(server, state)
        return replace(message, broadcast={**message.broadcast, **policy}), state

    # ------------------------------------------------------------ steps 2 to 4, at client i: leader

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        """Step 2: observe s_i(t) and choose a_i(t) = [alpha_i, eta_i]."""
        accuracy, loss = _accuracy_and_loss(client, client.start, self.split)  # of W(t)
        state = {**client.state, "received_loss": loss, "received_error": 1 - accuracy}
        if self.variant.exponent_weights and self.uses_errors:
            train_accuracy, _ = _accuracy_and_loss(client, client.start, "train")
            state["received_error"] = 1 - train_accuracy
        if not self.client_actions:
            return client.hparams, state

        if self.energy_budget:
            by_device = self.energy_budget == energy.DEVICES
            state["energy"] = energy.begin_round(
                client, self.energy_ranges, state["energy"], by_device
            )
        observation = self.client_observation(client, state, accuracy)
        action, state = self.client_action(client, state, observation)
        return self.to_hparams(action, client.hparams, client.task), state

    def client_observation(self, client: Client, state: State, accuracy: Tensor) -> Tensor:
        """Return s_i(t), what client i's agent observes (section 4.3).

        It is the accuracy of W(t) on the client's data; in the authors' code that of the client's
        model of the last round. With relative actions it also has the log loss and the time left;
        under an energy budget, the number of affordable epochs (appendix D).

        Args:
            client: The client, before training.
            state: Its state, with the loss of W(t).
            accuracy: The accuracy of W(t), `[]`.

        Returns:
            The observation, a vector of 1 to 4 numbers.
        """
        observation = [state["trained_acc"] if self.variant.authors_code else accuracy]
        if self.variant.relative_actions:
            loss = state["received_loss"]
            time_left = torch.full_like(loss, 1 - client.round / client.num_rounds)
            observation += [loss.clamp(min=MIN_LOSS).log(), time_left]
        if self.energy_budget:
            affordable = energy.affordable_epochs(state["energy"]["cost"])
            observation.append(affordable / self.max_epochs)
        return torch.stack(observation)

    def client_action(
        self, client: Client, state: State, observation: Tensor
    ) -> tuple[Tensor, State]:
        """Return a_i(t) = [alpha_i, eta_i], which client i's agent chooses (algorithm 2).

        Args:
            client: The client, before training.
            state: Its state, with its agent.
            observation: s_i(t).

        Returns:
            The action as it is stored, one number for each of `client_actions`, and the state with
            it.
        """
        action, state = self.client_policy.act(client, state, observation)
        action = self.stored_action(action, self.client_policy.is_random(state), client.task)
        return action, set_last_transition(state, "agent", last_action=action)

    def client_reward(
        self, client: Client, state: State, trained_loss: Tensor
    ) -> tuple[Tensor, State]:
        """Return r_i(t), what client i's agent is paid (definition 1).

        It is u_i = 1 / f_i(w_i), or the improvement log f_i(W(t)) - log f_i(w_i); under an energy
        budget less lambda_i b_i (appendix D).

        Args:
            client: The client, after training.
            state: Its state, with the loss of W(t).
            trained_loss: f_i(w_i), `[]`.

        Returns:
            The reward `[]`, and the state with the multiplier lambda_i of the next round.
        """
        reward = self.variant.reward(state["received_loss"], trained_loss)
        if not self.energy_budget:
            return reward, state
        penalty, energy_state = energy.penalise(client, state["energy"], self.dual_lr)
        return reward - penalty, {**state, "energy": energy_state}

    def stored_action(self, action: Tensor, is_random: Tensor, task: Task) -> Tensor:
        """Return a_i(t) as the replay buffer stores it.

        Args:
            action: What the agent chose, in [-1, 1], one number for each of `client_actions`.
            is_random: A boolean `[]`: it is a random action.
            task: The task.

        Returns:
            The action; in the authors' code epochs and learning rate themselves.
        """
        if not self.variant.authors_code:
            return action
        lr_min, lr_max = self.lr_range(task)
        units = {"alpha": self.max_epochs / lr_max, "eta": 1.0}
        scale = torch.tensor([units[name] for name in self.client_actions], dtype=action.dtype)
        return authors_box(action, is_random, lr_min, lr_max) * scale

    def to_hparams(self, action: Tensor, configured: LocalHParams, task: Task) -> LocalHParams:
        """Return epochs and learning rate of an action.

        Args:
            action: a_i(t) as it is stored, one number for each of `client_actions`.
            configured: Epochs and rate of the run; what no agent decides stays as it is.
            task: The task, which decides the range of rates.

        Returns:
            alpha_i(t) and eta_i(t).
        """
        action_of = dict(zip(self.client_actions, action, strict=True))
        epochs = configured.epochs
        lr = configured.lr
        if "alpha" in action_of:
            epochs = self.variant.epochs(action_of["alpha"], epochs, self.max_epochs)
        if "eta" in action_of:
            lr = self.variant.lr(action_of["eta"], lr, *self.lr_range(task))
        return LocalHParams(epochs, lr)

    def allowed_hparams(
        self, task: Task, proposed: LocalHParams, round: int, num_rounds: int, server_chose: bool
    ) -> tuple[LocalHParams, LocalHParams]:
        """Allow what actions in [-1, 1] can choose."""
        if not self.client_actions:
            return super().allowed_hparams(task, proposed, round, num_rounds, server_chose)
        if self.variant.authors_code:
            highest = hparams_like(proposed, self.max_epochs, self.lr_range(task)[1])
            return hparams_like(proposed, 0, 0.0), highest
        return self._hparams_at(-1.0, task, proposed), self._hparams_at(1.0, task, proposed)

    def _hparams_at(self, bound: float, task: Task, proposed: LocalHParams) -> LocalHParams:
        """Return epochs and rate `[K]` if all actions are at one bound."""
        action = torch.full((len(self.client_actions),), bound, dtype=torch.float64)
        limit = self.to_hparams(action, proposed, task)
        return LocalHParams(
            limit.epochs.expand_as(proposed.epochs), limit.lr.expand_as(proposed.lr)
        )

    def train(self, client: Client) -> tuple[Params, State]:
        """Step 3: train as the base does, equation (4); the authors' code clips gradients."""
        if self.variant.authors_code and not client.training.max_grad_norm:
            client = copy(client)
            client.training = replace(client.training, max_grad_norm=AUTHORS_MAX_GRAD_NORM)
        return super().train(client)

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Step 4: upload w_i with its scores, and pay the client's agent r_i(t)."""
        update, state = super().upload(client)
        accuracy, loss = _accuracy_and_loss(client, client.trained, self.split)  # of w_i
        metrics = {**update.metrics, "received_loss": state["received_loss"], "trained_loss": loss}
        metrics |= self.client_policy.report(state)
        if "p" in self.factors and self.server_policy.uses_reported_accuracy:
            metrics["trained_acc"] = accuracy
        if self.uses_errors:
            metrics["error"] = state["received_error"]
        if self.variant.authors_code:
            state["trained_acc"] = accuracy

        reward, state = self.client_reward(client, state, loss)
        state = set_last_transition(state, "agent", last_reward=reward)
        return replace(update, metrics=metrics), state

    def personal_model(self, client: Client) -> Params:
        """Return the base's personal model.

        With a bias to the clients that cannot scale their rewards, it is w_i after a few more
        epochs at a tenth of the rate.
        """
        if self.log10_bias >= 0 or self.bias_scales_rewards:
            return super().personal_model(client)
        num_epochs = math.ceil(-self.log10_bias * FINETUNE_EPOCHS)
        epochs = torch.full_like(client.hparams.epochs, num_epochs)
        hparams = LocalHParams(epochs, client.hparams.lr / 10)
        return client.fit(client.trained, hparams=hparams, stream=1)

    # ------------------------------------------------------- steps 5 and 6, at the server: follower

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        """Step 5: observe s_CS(t) and choose a_CS(t) = p(t).

        The server's agent also learns here, before it acts: p(t) depends on it (algorithm 1). Its
        reward is that of the paper, unless `aggregate` replaces it.
        """
        updates = _clip_outlying_reports(updates)
        weights, state = super().aggregation_weights(server, ids, updates)
        if "p" not in self.factors:
            return weights, state
        assert isinstance(weights, Tensor)  # `check` refuses bases with weights per parameter
        action, state = self.server_policy.act(server, state, ids, updates)
        error = updates.metrics["error"] if self.uses_errors else None
        p = self.variant.weights(action, weights, error, self.log10_bias)
        server.logged["p"] = p
        reward = self.server_reward(p, updates.metrics["trained_loss"])
        return p, set_last_transition(state, "server_agent", last_reward=reward)

    def server_reward(self, p: Tensor, trained_loss: Tensor) -> Tensor:
        """Return r_CS(t) = u_CS = 1 / F, F = sum_i p_i f_i(w_i) (definition 1, equation 1).

        Args:
            p: The aggregation weights p(t) `[K]`.
            trained_loss: f_i(w_i) `[K]`.
        """
        return 1 / (p @ trained_loss).clamp(min=MIN_LOSS)

    def server_reward_of_model(self, server: Server, params: Params) -> Tensor:
        """Return r_CS(t) where F is the loss of the global model on the server's own data.

        It is the improvement log F(W(t)) - log F(W(t+1)) on public data; in the authors' code
        1 / F(W(t+1)) on test data.

        Args:
            server: The server before the aggregation, with W(t).
            params: W(t+1).
        """
        models = [server.params, params] if self.variant.reward_is_improvement else [params]
        stack = {name: torch.stack([model[name] for model in models]) for name in params}
        losses = server.evaluate(stack, self.variant.server_split)["loss"].double()
        return self.variant.reward(losses[0], losses[-1])

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        """Step 6: W(t+1) by equation (5), as the base does it."""
        params, state = super().aggregate(server, ids, updates, weights)
        pays_by_model = self.variant.reward_is_improvement or self.variant.authors_code
        if "server_agent" not in state or not pays_by_model:
            return params, state
        reward = self.server_reward_of_model(server, params)
        return params, set_last_transition(state, "server_agent", last_reward=reward)

    def learn(self, server: Server, ids: Tensor, updates: ClientUpdate) -> State:
        """Train the agent that clients share, for the next round, and record both utilities."""
        state = super().learn(server, ids, updates)
        metrics = _clip_outlying_reports(updates).metrics
        utilities, history = record_utilities(
            state["history"], metrics["received_loss"], metrics["trained_loss"], MIN_LOSS
        )
        server.logged |= {"log_utility_global": utilities[0], "log_utility_local": utilities[1]}
        return self.client_policy.learn(server, {**state, "history": history}, metrics)

    def should_stop(self, server: Server) -> str | None:
        """End the game when neither utility changes any more."""
        first_round = self.learning_starts(server.num_rounds)
        if has_converged(server.state["history"], self.tolerance, first_round):
            return "equilibrium: global and local utility stopped evolving"
        return super().should_stop(server)


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


def _accuracy_and_loss(client: Client, params: Params, split: str) -> tuple[Tensor, Tensor]:
    """Return accuracy and loss of a model on the client's own data, in double precision."""
    accuracy, loss = client.task.utility_and_loss(client.evaluate(params, split))
    return accuracy.double(), loss.double()


def _clip_outlying_reports(updates: ClientUpdate) -> ClientUpdate:
    """Winsorise what clients report of their models, so that no report is far from the others."""
    clipped = {
        name: winsorize(value) if name in MODEL_REPORTS else value
        for name, value in updates.metrics.items()
    }
    return replace(updates, metrics=clipped)


# ------------------------------------------------------------------------------- end of the game


def init_history(window: int) -> UtilityHistory:
    """Return a history without rounds, for two windows of this many rounds."""
    return {
        "utilities": torch.zeros(max(1, 2 * window), 2, dtype=torch.float64),
        "rounds": torch.zeros((), dtype=torch.int64),
    }


def record_utilities(
    history: UtilityHistory, received_loss: Tensor, trained_loss: Tensor, min_loss: float
) -> tuple[Tensor, UtilityHistory]:
    """Add a round's utilities, 1 / mean validation loss of the clients, to the history.

    Args:
        history: The history.
        received_loss: Loss of W(t) at each client `[K]`: the global utility.
        trained_loss: Loss of w_i at each client `[K]`: the local utility.
        min_loss: Losses below count as this.

    Returns:
        The logarithms of the global and the local utility `[2]`, and the history with them.
    """
    losses = torch.stack([received_loss.double().mean(), trained_loss.double().mean()])
    newest = -losses.clamp(min=min_loss).log()
    utilities = torch.cat([history["utilities"], newest.unsqueeze(0)])[1:]
    return newest, {"utilities": utilities, "rounds": history["rounds"] + 1}


def has_converged(history: UtilityHistory, tolerance: float, first_round: int = 0) -> bool:
    """Return whether both utilities agree between the last two windows of rounds.

    Args:
        history: The history.
        tolerance: The difference of the windows' mean log utilities that counts as none.
        first_round: Rounds up to this one do not count.

    Returns:
        True if both windows are full and differ by less than the tolerance in both utilities.
    """
    utilities = history["utilities"]
    window = len(utilities) // 2
    if window == 0 or int(history["rounds"]) < 2 * window + first_round:
        return False
    change = utilities[window:].mean(0) - utilities[:window].mean(0)
    return bool((change.abs() < tolerance).all())
