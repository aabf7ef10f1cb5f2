"""PAGE: personalisation and generalisation as a Stackelberg game between clients and server.

"PAGE: Equilibrate Personalization and Generalization in Federated Learning", WWW 2024. The clients
lead, the server follows, and each of them is a DDPG agent. A round has the steps of section 4.4:

  1. The server sends W(t) (`distribute`).
  2. Client i observes s_i(t), and its agent chooses a_i(t) = [alpha_i, eta_i], epochs and learning
     rate (`configure_training`; algorithm 2).
  3. Client i trains: w_i = Train(eta_i, alpha_i; W(t)), equation (4) (the base method's `train`).
  4. Client i uploads w_i and is paid u_i = 1 / f_i(w_i) (`upload`).
  5. The server observes s_CS(t), and its agent chooses a_CS(t) = p(t) = [p_1, ..., p_N]
     (`aggregation_weights`; algorithm 1).
  6. W(t+1) = sum_i p_i w_i, equation (5); the server is paid u_CS = 1 / F(W(t+1)) (`aggregate`).

Agents of their own learn in steps 2 and 5, just before they act, as in the paper. The agent that
all clients share, which the paper does not have, learns after step 6 (`learn`). The game ends when
both utilities stop changing (`should_stop`).

How actions and rewards are read is the `GameVariant` (config.py); who decides are the policies
(agents.py); energy budgets are appendix D (energy.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypedDict

import torch
from torch import Tensor

from equipoise.core import (
    Capabilities,
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
from equipoise.methods.page.agents import set_last_transition
from equipoise.methods.page.config import MIN_LOSS, PageConfig

FINETUNE_EPOCHS = 5
"""Epochs of fine-tuning of a personal model per power of ten of bias to the clients."""
MODEL_REPORTS = {
    "received_loss": LOSS,
    "trained_loss": LOSS,
    "trained_acc": FRACTION,
    "error": FRACTION,
}
"""What clients report of their models, and the valid ranges."""


class UtilityHistory(TypedDict):
    """The utilities of the last rounds, on which the end of the game depends."""

    utilities: Tensor
    """Logarithms `[2 * window, 2]` of the global and the local utility, oldest first."""
    rounds: Tensor
    """Rounds so far."""


@dataclass(frozen=True)
class Page(PageConfig):
    """Epochs, learning rates and aggregation weights are chosen by agents; the rest by the base.

    Client state, besides `base` and the policy's (agents.py): `received_loss` and `received_error`
    of W(t) on the client's data, and `energy` under a budget (`EnergyState`).
    Server state, besides `base` and the policies': `history`, a `UtilityHistory`.
    """

    name: ClassVar[str] = "page"
    family: ClassVar[str] = "controller"

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
        return {**super().report_ranges, **MODEL_REPORTS, **agents.REPORT_RANGES}

    @property
    def client_policy(self) -> agents.FixedPolicy:
        """The leaders' policy."""
        return agents.make_client_policy(self)

    @property
    def server_policy(self) -> agents.ServerPolicy:
        """The follower's policy."""
        return agents.make_server_policy(self)

    def init_client(self, task: Task, params: Params) -> State:
        """Return the state of a client that takes part for the first time."""
        zero = torch.zeros((), dtype=torch.float64)
        state = super().init_client(task, params)
        state |= {"received_loss": zero, "received_error": zero}
        state |= self.client_policy.init_client(task)
        if self.energy_budget:
            state["energy"] = energy.init_state()
        return state

    def init_server(self, task: Task, params: Params) -> State:
        """Return the server's state before the first round."""
        state = super().init_server(task, params)
        state["history"] = init_history(self.window)
        state |= self.client_policy.init_server(task)
        state |= self.server_policy.init_server(task)
        return state

    # ------------------------------------------------------------------------ step 1, at the server

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Send W(t), and the actor if clients share one."""
        message, state = super().distribute(server, ids)
        policy, state = self.client_policy.distribute(server, state)
        return replace(message, broadcast={**message.broadcast, **policy}), state

    # ------------------------------------------------------------ steps 2 to 4, at client i: leader

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        """Step 2: observe s_i(t) and choose a_i(t) = [alpha_i, eta_i].

        s_i(t) is the accuracy of W(t) on the client's data. With relative actions it also has the
        log loss and the time left; under an energy budget, the number of affordable epochs.
        """
        accuracy, loss = _accuracy_and_loss(client, client.start, self.variant.split)
        state = {**client.state, "received_loss": loss, "received_error": 1 - accuracy}
        if self.variant.exponent_weights and self.uses_errors:
            train_accuracy, _ = _accuracy_and_loss(client, client.start, "train")
            state["received_error"] = 1 - train_accuracy
        if not self.client_actions:
            return client.hparams, state

        observation = [accuracy]
        if self.variant.relative_actions:
            time_left = torch.full_like(loss, 1 - client.round / client.num_rounds)
            observation += [loss.clamp(min=MIN_LOSS).log(), time_left]
        if self.energy_budget:
            by_device = self.energy_budget == energy.DEVICES
            state["energy"] = energy.begin_round(
                client, self.energy_ranges, state["energy"], by_device
            )
            affordable = energy.affordable_epochs(state["energy"]["cost"])
            observation.append(affordable / self.max_epochs)

        action, state = self.client_policy.act(client, state, torch.stack(observation))
        action = self.variant.stored_action(action, self.lr_min, self.lr_max)
        state = set_last_transition(state, "agent", last_action=action)
        return self.to_hparams(action, client.hparams), state

    def to_hparams(self, action: Tensor, configured: LocalHParams) -> LocalHParams:
        """Return epochs and learning rate of an action.

        Args:
            action: a_i(t), one number for each of `client_actions`.
            configured: Epochs and rate of the run; what no agent decides stays as it is.

        Returns:
            alpha_i(t) and eta_i(t).
        """
        chosen = dict(zip(self.client_actions, action, strict=True))
        epochs = configured.epochs
        lr = configured.lr
        if "alpha" in chosen:
            epochs = self.variant.epochs(chosen["alpha"], epochs, self.max_epochs, self.lr_max)
        if "eta" in chosen:
            lr = self.variant.lr(chosen["eta"], lr, self.lr_min, self.lr_max)
        return LocalHParams(epochs, lr)

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Step 4: upload w_i with its scores, and pay the client's agent.

        The reward is u_i = 1 / f_i(w_i), or the improvement log f_i(W(t)) - log f_i(w_i); under an
        energy budget less lambda_i b_i.
        """
        update, state = super().upload(client)
        accuracy, loss = _accuracy_and_loss(client, client.trained, self.variant.split)
        metrics = {**update.metrics, "received_loss": state["received_loss"], "trained_loss": loss}
        metrics |= self.client_policy.report(state)
        if "p" in self.factors and self.server_policy.uses_reported_accuracy:
            metrics["trained_acc"] = accuracy
        if self.uses_errors:
            metrics["error"] = state["received_error"]

        reward = self.variant.reward(state["received_loss"], loss, -self.log10_bias)
        if self.energy_budget:
            penalty, state["energy"] = energy.penalise(client, state["energy"], self.dual_lr)
            reward = reward - penalty
        state = set_last_transition(state, "agent", last_reward=reward)
        return replace(update, metrics=metrics), state

    def personal_model(self, client: Client) -> Params:
        """Return the base's personal model; with a bias to the clients, w_i after fine-tuning."""
        if self.log10_bias >= 0 or self.variant.authors_code:
            return super().personal_model(client)
        return self._finetune_personal(client)

    def _finetune_personal(self, client: Client) -> Params:
        """Train w_i for a few more epochs at a tenth of the rate, after the upload."""
        num_epochs = math.ceil(-self.log10_bias * FINETUNE_EPOCHS)
        epochs = torch.full_like(client.hparams.epochs, num_epochs)
        hparams = LocalHParams(epochs, client.hparams.lr / 10)
        return client.fit(client.trained, hparams=hparams, stream=1)

    # ------------------------------------------------------- steps 5 and 6, at the server: follower

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        """Step 5: observe s_CS(t) and choose a_CS(t) = p(t).

        The server's agent also learns here, before it acts: p(t) depends on it (algorithm 1). It is
        paid u_CS = 1 / sum_i p_i f_i(w_i) (definition 1), unless `aggregate` pays it.
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
        reward = 1 / (p @ updates.metrics["trained_loss"]).clamp(min=MIN_LOSS)
        return p, set_last_transition(state, "server_agent", last_reward=reward)

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        """Step 6: W(t+1) by equation (5), as the base does it.

        Improvements are paid here, log F(W(t)) - log F(W(t+1)) on the server's public data. The
        authors' code pays 1 / F(W(t+1)) on test data.
        """
        params, state = super().aggregate(server, ids, updates, weights)
        pays_by_model = self.variant.reward_is_improvement or self.variant.authors_code
        if "server_agent" not in state or not pays_by_model:
            return params, state
        models = [server.params, params] if self.variant.reward_is_improvement else [params]
        stack = {name: torch.stack([model[name] for model in models]) for name in params}
        losses = server.evaluate(stack, self.variant.server_split)["loss"].double()
        reward = self.variant.reward(losses[0], losses[-1], self.log10_bias)
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


def _accuracy_and_loss(client: Client, params: Params, split: str) -> tuple[Tensor, Tensor]:
    """Return accuracy and loss of a model on the client's own data, in double precision."""
    accuracy, loss = client.task.utility_and_loss(client.evaluate(params, split))
    return accuracy.double(), loss.double()


def _clip_outlying_reports(updates: ClientUpdate) -> ClientUpdate:
    """Winsorise what clients report of their models: nobody's report is far from all others'."""
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
