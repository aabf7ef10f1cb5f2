"""Policies that choose the part of the model that each client installs, and the probe they use.

A *probe* is made by a client before it trains: it scores, on its validation rows, the model that it
would start from after installing each part. Before training a score measures how well the parts fit
this client; after training the differences are noise. A client that probes is sent the whole model.

| policy | class | chooses |
|---|---|---|
| a part, or `full:0.8,none` | `SchedulePolicy` | one part for all, by the share of the run |
| `random` | `RandomPart` | any allowed part, stratified over the clients of a round |
| `probe` | `AlwaysProbe` | at the client: the part with the best probe |
| `bandit`, `dqn` | `BanditPolicy`, `DqnPolicy` | by a Q-network that all clients share |
| `learned` | `PredictiveProbing` | by sparse probes, predicted in between |

Symbols: N clients in all, K clients in a round, P parts, F features, R regression inputs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import Client, Params, Server, State, ValueRange
from equipoise.methods.fedpolicy.state import (
    BlockSets,
    features,
    label_entropy,
    num_features,
    write_rows,
)
from equipoise.rl import dqn
from equipoise.rl.nn import DTYPE, add_to_buffer
from equipoise.utils import rng
from equipoise.utils.errors import UsageError, did_you_mean

FULL_PART = 0  # the number of the whole model among the parts
FULL_ROUNDS = 5  # all clients install the whole model at first

# Probes.
SCORE_SMOOTHING = 0.7  # share of a smoothed score that is kept each round
SCORE_LOSS_WEIGHT = 0.02  # accuracy decides; the loss breaks ties
MAX_SCORE_LOSS = 3.0  # a larger loss counts as this one
SCORE_RANGE = ValueRange(0.0, 1.0 + SCORE_LOSS_WEIGHT * MAX_SCORE_LOSS)
HALF_SHRINKAGE_ROWS = 15.0  # validation rows at which `probe` counts a score half

# The Q-networks.
STRATIFIED_ROUNDS = 3  # random parts after the full rounds
EPSILON_START = 0.5
EPSILON_END = 0.05
EPSILON_DECAY_SHARE = 0.3  # of all rounds

# Predictive probing.
RESIDUAL_PENALTY = 10.0  # on the squared residual: one round's reward is nearly all noise
RUNNER_UP_EPSILON = 0.1  # chance to explore the second best part, falling to 0
MAX_EXPLORATION_GAP = 0.03  # a runner-up further behind is not explored: a wrong part destroys much
FROZEN_SHARE = 0.15  # in this last share of the rounds nobody probes and nothing changes
RIDGE_PENALTY = 20.0
EVIDENCE_DECAY = 0.98  # of the regression's sums, each round
MAX_PREDICTED_CHANGE = 0.2  # of a score since the last probe
ROW_VARIANCE = 0.1  # of the difference of two scores on one row: how often two models disagree
MIN_PROBE_INTERVAL = 2  # rounds between probes at first, and after an unconfirmed choice
MIN_SHARER_FRACTION = 0.1  # of the clients share the backbone, if their own evidence is for it


# --- the probe, at a client -----------------------------------------------------------------------


def init_probe(parts: BlockSets) -> State:
    """Return the probe state of a client that has never probed."""
    return {
        "scores": torch.zeros(len(parts), dtype=DTYPE),  # smoothed score of each part
        "accuracy": torch.zeros(len(parts), dtype=DTYPE),  # of each part at the last probe
        "loss": torch.zeros(len(parts), dtype=DTYPE),  # of each part at the last probe
        "entropy": torch.zeros(1, dtype=DTYPE),  # of the client's labels
        "probe_round": torch.zeros((), dtype=torch.int64),  # of the last probe; 0: none
        "installed_part": torch.zeros((), dtype=torch.int64),  # in the last round
    }


def probe_score(accuracy: Tensor, loss: Tensor) -> Tensor:
    """Return 1 - accuracy + 0.02 min(loss, 3); lower is better."""
    return 1.0 - accuracy + SCORE_LOSS_WEIGHT * loss.clamp(max=MAX_SCORE_LOSS)


def probe(client: Client, parts: BlockSets, last: State, requested: Tensor) -> State:
    """Score every part, where a probe is requested.

    Args:
        client: The client, with the received model and its own.
        parts: The parts.
        last: Its probe state.
        requested: Whether this client probes (one boolean).

    Returns:
        The new probe state.
    """
    if not client.any_client(requested):
        return last
    accuracy, loss = _evaluate_parts(client, parts)
    rounds_since = (client.round - last["probe_round"]).to(DTYPE)
    smoothing = torch.where(last["probe_round"] > 0, SCORE_SMOOTHING**rounds_since, 0.0)
    new = {
        "scores": smoothing * last["scores"] + (1 - smoothing) * probe_score(accuracy, loss),
        "accuracy": accuracy,
        "loss": loss,
        "entropy": label_entropy(client),
        "probe_round": torch.full_like(last["probe_round"], client.round),
    }
    return last | {name: torch.where(requested, value, last[name]) for name, value in new.items()}


def _evaluate_parts(client: Client, parts: BlockSets) -> tuple[Tensor, Tensor]:
    """Return accuracy and loss `[P]` of the model after installing each part.

    Parts that differ only in the last block share the computation of the others.
    """
    *body_names, head_names = parts.param_names(client.task)
    received = client.message.params
    heads = {name: torch.stack([received[name], client.local_params[name]]) for name in head_names}
    rows = [tuple(row) for row in parts.membership.tolist()]
    bodies = list(dict.fromkeys(row[:-1] for row in rows))
    accuracies = []
    losses = []
    for body in bodies:
        model = dict(client.local_params)
        for names, installed in zip(body_names, body, strict=True):
            if installed:
                model |= {name: received[name] for name in names}
        accuracy, loss = client.task.utility_and_loss(client.evaluate_heads(model, heads))
        accuracies.append(accuracy)
        losses.append(loss)
    # Each body was evaluated with the received head and with the client's own, in this order.
    order = [2 * bodies.index(row[:-1]) + (not row[-1]) for row in rows]
    return torch.cat(accuracies)[order].to(DTYPE), torch.cat(losses)[order].to(DTYPE)


def probe_report(state: State) -> Tensor:
    """Return the report `[5]` of a probing client, before training.

    As `client_report`, but of the client's own model and of the one that it installed.
    """
    is_installed = torch.nn.functional.one_hot(state["installed_part"], len(state["scores"]))
    installed = is_installed.to(DTYPE)
    scores = [
        state["loss"][-1],
        state["accuracy"][-1],
        (installed * state["loss"]).sum(),
        (installed * state["accuracy"]).sum(),
    ]
    return torch.cat([torch.stack(scores), state["entropy"]])


def part_values(scores: Tensor, shrinkage: Tensor, prior_value: Tensor) -> Tensor:
    """Return the value of each part `[..., P]`: prior_a - shrinkage_a (score_a - score_none)."""
    return prior_value - shrinkage * (scores - scores[..., -1:])


# --- policies, at the server ----------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyConfig:
    """The user's choices about a policy.

    Attributes:
        parts: All parts.
        allowed: Names of the parts that may be chosen.
        gamma: Discount of one round, for `dqn`.
        sharing_bonus: Accuracy that a part is credited for each block it shares.
        probe_every: Largest number of rounds between probes, for `learned`.
        download_cost: Accuracy that a download of the whole model costs.
    """

    parts: BlockSets
    allowed: tuple[str, ...]
    gamma: float
    sharing_bonus: float
    probe_every: int
    download_cost: float

    @property
    def prior_value(self) -> Tensor:
        """The value `[P]` of parts that score alike: a bonus for each shared block."""
        return self.sharing_bonus * self.parts.membership.sum(1).to(DTYPE)

    @property
    def allowed_mask(self) -> Tensor:
        """Booleans `[P]`: whether a part may be chosen."""
        return torch.tensor([part in self.allowed for part in self.parts.names])


@dataclass
class Assignment:
    """The decision for each of the K clients of a round.

    Attributes:
        part: The part to install `[K]`.
        probe: Whether the client probes all parts `[K]`.
        client_chooses: Whether it then installs the part of the largest value `[K]`.
        shrinkage: The factor of a probe's score differences in that value `[K, P]`.
        prior_value: The rest of that value `[K, P]`.
    """

    part: Tensor
    probe: Tensor
    client_chooses: Tensor
    shrinkage: Tensor | None = None
    prior_value: Tensor | None = None

    @classmethod
    def without_probes(cls, part: Tensor) -> Assignment:
        """Assign parts `[K]` that clients install without a probe."""
        nobody = torch.zeros(len(part), dtype=torch.bool)
        return cls(part, nobody, nobody)


@dataclass(frozen=True)
class Policy(ABC):
    """A policy at the server.

    Attributes:
        config: The user's choices.
        probes: Whether clients probe when they are asked to, and may choose.
        learns: Whether clients report how they do, and the policy learns from it.
    """

    config: PolicyConfig
    probes: ClassVar[bool] = False
    learns: ClassVar[bool] = False

    def init(self, num_clients: int) -> State:
        """Return the policy's state at the begin of a run."""
        return {}

    @abstractmethod
    def assign(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Assignment, State]:
        """Decide before the download.

        Args:
            server: The server in this round.
            client_table: Its record of all clients (`init_client_table`).
            policy_state: The policy's own state.
            ids: The clients of the round `[K]`.

        Returns:
            The assignment, and the new policy state.
        """

    def new_reports(
        self, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return which reports are new `[K]`, and the parts that they result from `[K]`."""
        return torch.ones_like(ids, dtype=torch.bool), client_table["installed_part"][ids]

    def learn(
        self,
        server: Server,
        client_table: State,
        policy_state: State,
        ids: Tensor,
        metrics: Params,
    ) -> State:
        """Return the policy state after the replies of a round, with their metrics `[K, ...]`."""
        return policy_state


@dataclass(frozen=True)
class SchedulePolicy(Policy):
    """The same part for all clients in a round, by the share of the run that is over.

    Attributes:
        parts_over_run: Pairs of a part's name and the share of the run at which it ends, in
            increasing order; the last share is 1. One pair is a fixed part.
    """

    parts_over_run: tuple[tuple[str, float], ...] = (("full", 1.0),)

    def part_at(self, round: int, num_rounds: int) -> str:
        """Return the name of the part in a round, from 1.

        A part that ends at a share s of T rounds is installed up to round s T, rounded.
        """
        for name, end in self.parts_over_run:
            if round <= math.floor(end * num_rounds + 0.5):
                return name
        return self.parts_over_run[-1][0]

    def assign(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Assignment, State]:
        """Assign the part of the round."""
        name = self.part_at(server.round, server.num_rounds)
        part = torch.full_like(ids, self.config.parts.index(name))
        return Assignment.without_probes(part), policy_state


def parse_schedule(text: str, parts: BlockSets) -> tuple[tuple[str, float], ...]:
    """Parse a schedule such as `full:0.8,none`: parts and the share of the run that each lasts.

    The last part has no share, since it lasts to the end. A single part is a fixed choice.

    Args:
        text: The schedule.
        parts: The parts that may be named.

    Returns:
        Pairs of part and share of the run at which it ends; see `SchedulePolicy`.

    Raises:
        UsageError: If the text is no schedule. The message names every mistake.
    """
    *steps, last = (step.strip() for step in text.split(","))
    problems = []
    pairs: list[tuple[str, float]] = []
    end = 0.0
    for step in steps:
        name, _, share = step.partition(":")
        duration = _positive_share(share)
        if duration is None:
            problems.append(f"'{step}' must be a part and its share of the run, such as full:0.8")
        end += duration or 0.0
        pairs.append((name.strip(), end))
    if ":" in last:
        problems.append(f"'{last}' is the last part and lasts to the end: leave out its share")
    pairs.append((last.partition(":")[0].strip(), 1.0))
    if end >= 1.0:
        problems.append(f"the shares sum to {end:g}, so that nothing is left for the last part")
    for name, _ in pairs:
        if name not in parts.names:
            problems.append(
                f"'{name}' is none of {', '.join(parts.names)}{did_you_mean(name, parts.names)}"
            )
    if problems:
        raise UsageError(f"policy is '{text}': {'; '.join(problems)}")
    return tuple(pairs)


def _positive_share(text: str) -> float | None:
    """Return a number above 0 and below infinity, or None."""
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0.0 < share < math.inf else None


class RandomPart(Policy):
    """A random allowed part."""

    def assign(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Assignment, State]:
        """Assign stratified random parts."""
        part = stratified_random_parts(server, self.config, ids)
        return Assignment.without_probes(part), policy_state


class AlwaysProbe(Policy):
    """All clients probe in all rounds; after the full rounds each installs the best part."""

    probes = True

    def assign(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Assignment, State]:
        """Let clients choose; a score on n validation rows is shrunk by n / (n + 15)."""
        rows = server.task.num_rows(ids, "val").to(DTYPE)
        row_shrinkage = rows / (rows + HALF_SHRINKAGE_ROWS)
        shrinkage = row_shrinkage[:, None].expand(-1, len(self.config.parts))
        everybody = torch.ones_like(ids, dtype=torch.bool)
        assignment = Assignment(
            part=torch.full_like(ids, FULL_PART),
            probe=everybody,
            client_chooses=everybody & (server.round > FULL_ROUNDS),
            shrinkage=shrinkage,
            prior_value=self.config.prior_value.expand_as(shrinkage),
        )
        return assignment, policy_state


class DqnPolicy(Policy):
    """A double DQN that all clients share.

    Full rounds first, then stratified random ones, then epsilon-greedy.
    """

    learns = True

    @property
    def dqn_config(self) -> dqn.Config:
        """The Q-network."""
        return dqn.Config(
            num_features(self.config.parts), len(self.config.parts), gamma=self.config.gamma
        )

    def init(self, num_clients: int) -> State:
        """Return an agent and no open transition; the network is drawn in the first round."""
        config = self.dqn_config
        num_parts = len(self.config.parts)
        return {
            "agent": dqn.init(config, torch.zeros(dqn.init_draws(config), dtype=DTYPE)),
            # Per client: the open transition's features, its values before the network's residual,
            # and whether there is one.
            "features": torch.zeros(num_clients, config.features, dtype=DTYPE),
            "base_values": torch.zeros(num_clients, num_parts, dtype=DTYPE),
            "is_open": torch.zeros(num_clients, dtype=torch.bool),
        }

    def assign(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Assignment, State]:
        """Learn from the transitions that end here, then choose epsilon-greedily."""
        policy_state = self.close_transitions(server, client_table, policy_state, ids)
        part = self._choose(server, policy_state, ids)
        # A client that never replied has no features yet.
        has_replied = client_table["reply_round"][ids] > 0
        return Assignment.without_probes(torch.where(has_replied, part, FULL_PART)), policy_state

    def _choose(self, server: Server, policy_state: State, ids: Tensor) -> Tensor:
        """Return parts `[K]` by the phase of the run."""
        if server.round <= FULL_ROUNDS:
            return torch.full_like(ids, FULL_PART)
        random_parts = stratified_random_parts(server, self.config, ids)
        policy_rounds = server.round - FULL_ROUNDS - STRATIFIED_ROUNDS
        if policy_rounds <= 0:
            return random_parts
        values = dqn.values(self.dqn_config, policy_state["agent"], policy_state["features"][ids])
        best = values.masked_fill(~self.config.allowed_mask, -math.inf).argmax(1)
        decay = min(1.0, policy_rounds / (EPSILON_DECAY_SHARE * server.num_rounds))
        epsilon = EPSILON_START + (EPSILON_END - EPSILON_START) * decay
        explores = server.uniform_per_client(ids, 1, rng.POLICY[0])[:, 0] < epsilon
        return torch.where(explores, random_parts, best)

    def close_transitions(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> State:
        """Store these clients' open transitions, which end with their features now, and learn."""
        config = self.dqn_config
        now = features(client_table, ids, self.config.parts, server)
        agent = self.update_normaliser(server, client_table, policy_state["agent"], ids, now)
        is_open = policy_state["is_open"][ids]
        if bool(is_open.any()):
            open_ids = ids[is_open]
            part = client_table["installed_part"][open_ids]
            gap = server.round - client_table["reply_round"][open_ids]
            discount = torch.zeros(len(open_ids), dtype=DTYPE)
            if config.gamma:
                discount = config.gamma ** gap.to(DTYPE)
            transitions = {
                "state": policy_state["features"][open_ids],
                "action": part,
                "reward": client_table["reward"][open_ids],
                "base": policy_state["base_values"][open_ids, part],
                "next": now[is_open],
                "discount": discount,
                "round": client_table["reply_round"][open_ids],
            }
            agent = add_to_buffer(agent, transitions)
        return {
            **policy_state,
            "agent": self.train_q_network(server, agent),
            "features": policy_state["features"].index_copy(0, ids, now),
            "is_open": policy_state["is_open"].index_fill(0, ids, False),
        }

    def update_normaliser(
        self, server: Server, client_table: State, agent: State, ids: Tensor, now: Tensor
    ) -> State:
        """Add the features `[K, F]` of clients that have replied to the running mean and variance.

        In the first round the agent is drawn here.
        """
        if server.round == 1:
            draws = server.uniform(dqn.init_draws(self.dqn_config), rng.POLICY[0])
            agent = dqn.init(self.dqn_config, draws)
        return dqn.update_normaliser(agent, now[client_table["reply_round"][ids] > 0])

    def train_q_network(self, server: Server, agent: State) -> State:
        """Make the round's updates on stored transitions."""
        config = self.dqn_config
        draws = server.uniform(config.steps * config.batch, rng.POLICY[1])
        draws = draws.reshape(config.steps, config.batch)
        return dqn.learn(config, agent, self.config.allowed_mask, server.round, draws)

    def learn(
        self,
        server: Server,
        client_table: State,
        policy_state: State,
        ids: Tensor,
        metrics: Params,
    ) -> State:
        """Open transitions; a client's first report has no gain, so that it opens none."""
        has_gain = client_table["num_reports"][ids] > 1
        return write_rows(policy_state, ids, {"is_open": has_gain})


class BanditPolicy(DqnPolicy):
    """The same with gamma 0: a contextual bandit."""

    @property
    def dqn_config(self) -> dqn.Config:
        """The network, which predicts the next reward alone."""
        return replace(super().dqn_config, gamma=0.0)


def stratified_random_parts(server: Server, config: PolicyConfig, ids: Tensor) -> Tensor:
    """Return random parts `[K]`: in a round each allowed part goes to equally many clients."""
    allowed = config.allowed_mask.nonzero()[:, 0]
    draws = server.uniform_per_client(ids, 1, rng.POLICY[2])[:, 0]
    rank = draws.argsort().argsort()
    return allowed[rank % len(allowed)]


class PredictiveProbing(DqnPolicy):
    """Sparse probes, predictions in between, and a learned residual (option value `learned`).

    The value of part a for client i is

        v_ia = T_ia d_ia + (1 - T_ia) mu_a + bonus x blocks_a - cost x bytes_a + Q(features_i)_a

    with d_ia how much better a scores than the client's own model, mu_a the mean of d over clients
    and T_ia the shrinkage (:meth:`empirical_bayes`). Q is a small network that starts at zero and
    learns from rewards under a penalty.

    A client probes when its last probe is too long ago (2, 4, 8, ... up to `probe_every` rounds,
    while probes confirm its part), or when another part is predicted to be better: it never changes
    its part without a probe. In between scores are predicted: their change since the last probe, by
    ridge regression on features that cost nothing.
    """

    probes = True

    @property
    def dqn_config(self) -> dqn.Config:
        """The network of the residual."""
        return replace(super().dqn_config, gamma=0.0, residual=RESIDUAL_PENALTY, steps=4)

    @property
    def num_inputs(self) -> int:
        """The number R of :meth:`regression_inputs`."""
        return 1 + self.dqn_config.features + 1 + len(self.config.parts)

    def init(self, num_clients: int) -> State:
        """Return the state in which nobody has probed."""
        num_parts = len(self.config.parts)
        num_inputs = self.num_inputs

        def zeros(*shape: int, dtype: torch.dtype = DTYPE) -> Tensor:
            return torch.zeros(num_clients, *shape, dtype=dtype)

        return super().init(num_clients) | {
            # This round, per client.
            "probe_requested": zeros(dtype=torch.bool),
            "client_chooses": zeros(dtype=torch.bool),
            "predicted_scores": zeros(num_parts),
            "regression_inputs": zeros(num_inputs),
            "current_features": zeros(self.dqn_config.features),
            "part_values": zeros(num_parts),  # centred over the allowed parts
            # The last probe, per client.
            "probe_round": zeros(dtype=torch.int64),  # 0: never
            "probe_interval": torch.full((num_clients,), MIN_PROBE_INTERVAL, dtype=torch.int64),
            "scores": zeros(num_parts),
            "action": zeros(dtype=torch.int64),  # the part that was installed then
            # Sums of the ridge regression: X'X and X'Y over pairs of consecutive probes.
            "gram": torch.zeros(num_inputs, num_inputs, dtype=DTYPE),
            "cross": torch.zeros(num_inputs, num_parts, dtype=DTYPE),
        }

    def assign(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Assignment, State]:
        """Decide who probes, who chooses by its probe, and the part of everybody else."""
        mask = self.config.allowed_mask
        last_part = client_table["installed_part"][ids]

        # Predict scores and values.
        now = features(client_table, ids, self.config.parts, server)
        agent = self.update_normaliser(server, client_table, policy_state["agent"], ids, now)
        policy_state = {**policy_state, "agent": self.train_q_network(server, agent)}
        inputs = self.regression_inputs(server, policy_state, ids, now)
        predicted = self.predicted_scores(client_table, policy_state, ids, inputs)
        shrinkage, prior_value = self.empirical_bayes(server, policy_state, ids)
        prior_value = prior_value + dqn.values(self.dqn_config, policy_state["agent"], now)
        values = part_values(predicted, shrinkage, prior_value).masked_fill(~mask, -math.inf)
        ranked = values.sort(dim=1, descending=True, stable=True)

        # Choose the best part: the whole model at the start, no change at the end of the run.
        starting = (client_table["reply_round"][ids] == 0) | (server.round <= FULL_ROUNDS)
        time_left = max(0.0, 1.0 - server.round / ((1.0 - FROZEN_SHARE) * server.num_rounds))
        frozen = time_left == 0
        best = torch.where(starting, FULL_PART, last_part if frozen else ranked.indices[:, 0])
        own_values = part_values(
            predicted, torch.ones_like(shrinkage), self.prior_values(server, ids)
        ).masked_fill(~mask, -math.inf)
        sharing = self.forced_sharers(own_values, best) & (not frozen)
        best = torch.where(sharing, own_values.argmax(1), best)

        # Probe when the last probe is too old, or before a change.
        rounds_since = server.round - policy_state["probe_round"][ids]
        is_due = rounds_since >= policy_state["probe_interval"][ids]
        would_change = (best != last_part) & (rounds_since > 1)
        probes = (is_due | would_change) & (not frozen) & (server.round >= FULL_ROUNDS)

        # Explore the runner-up at times, where it is close; else the client chooses.
        is_free = probes & ~starting & ~sharing
        draws = server.uniform_per_client(ids, 1, rng.POLICY[0])[:, 0]
        is_close = ranked.values[:, 0] - ranked.values[:, 1] < MAX_EXPLORATION_GAP
        exploring = is_free & (draws < RUNNER_UP_EPSILON * time_left) & is_close
        part = torch.where(exploring, ranked.indices[:, 1], best)
        client_chooses = is_free & ~exploring

        server.logged["probes"] = int(probes.sum())
        mean_value = values[:, mask].mean(1, keepdim=True)
        rows = {
            "probe_requested": probes,
            "client_chooses": client_chooses,
            "predicted_scores": predicted,
            "regression_inputs": inputs,
            "current_features": now,
            # Parts that are not allowed have value -inf, and a stored state must be finite.
            "part_values": torch.where(mask, values - mean_value, 0.0),
        }
        policy_state = write_rows(policy_state, ids, rows)
        return Assignment(part, probes, client_chooses, shrinkage, prior_value), policy_state

    def empirical_bayes(
        self, server: Server, policy_state: State, ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return shrinkage T and prior value, both `[K, P]`.

        Few validation rows say little about one client, but those of all tell how clients differ.
        The score difference of client i is a draw from N(mu, tau^2) over clients, observed with the
        variance s_i^2 of its own rows: T_i = tau^2 / (tau^2 + s_i^2), and the prior value is
        bonus - cost - (1 - T_i) mu (scores are better when lower).
        """
        prior = self.prior_values(server, ids)
        probed_ids = (policy_state["probe_round"] > 0).nonzero()[:, 0]
        if not len(probed_ids):
            return torch.ones(len(ids), len(self.config.parts), dtype=DTYPE), prior
        scores = policy_state["scores"][probed_ids]
        differences = scores - scores[:, -1:]
        mean = differences.mean(0)
        variance = (differences - mean).square().mean(0)
        noise = self.difference_variance(server, probed_ids).mean()
        tau_sq = (variance - noise).clamp(min=0)
        shrinkage = tau_sq / (tau_sq + self.difference_variance(server, ids))
        return shrinkage, prior - (1 - shrinkage) * mean

    def forced_sharers(self, own_values: Tensor, best: Tensor) -> Tensor:
        """Return who shares the first block although the pooled evidence is against it `[K]`.

        A backbone that nobody installs is trained by nobody and would stay useless. If less than a
        tenth of the clients would share it, those do whose own evidence is most for it.

        Args:
            own_values: Values without shrinkage `[K, P]`.
            best: The best parts by the pooled evidence `[K]`.
        """
        shares_first = self.config.parts.membership[:, 0]
        keeps_own = ~shares_first[best]
        num_missing = max(0, math.ceil(MIN_SHARER_FRACTION * len(best)) - int((~keeps_own).sum()))
        best_sharing = own_values[:, shares_first].max(1).values
        best_keeping = own_values[:, ~shares_first].max(1).values
        evidence = best_sharing - best_keeping
        ranked = evidence.masked_fill(~keeps_own, -math.inf).argsort(descending=True, stable=True)
        forced = torch.zeros_like(keeps_own)
        forced[ranked[:num_missing]] = True
        return forced & (evidence > 0)

    def prior_values(self, server: Server, ids: Tensor) -> Tensor:
        """Return `[K, P]`: the value of parts that score alike, bonus less download cost."""
        costs = self.config.parts.download_costs(server.task, server.params, ids)
        return self.config.prior_value - self.config.download_cost * costs

    def difference_variance(self, server: Server, ids: Tensor) -> Tensor:
        """Return `[K, 1]`: variance of a difference of two scores on a client's rows."""
        num_rows = server.task.num_rows(ids, "val").to(DTYPE)
        return ROW_VARIANCE / num_rows.clamp(min=1)[:, None]

    def regression_inputs(
        self, server: Server, policy_state: State, ids: Tensor, now: Tensor
    ) -> Tensor:
        """Return `[K, R]`: one, the features, the time since the last probe, and its scores."""
        rounds_since = (server.round - policy_state["probe_round"][ids]).to(DTYPE)[:, None]
        time_since = rounds_since / self.config.probe_every
        standardised = dqn.standardise(policy_state["agent"], now).clamp(-3, 3)
        scores = policy_state["scores"][ids]
        return torch.cat([torch.ones_like(time_since), standardised, time_since, scores], 1)

    def predicted_scores(
        self, client_table: State, policy_state: State, ids: Tensor, inputs: Tensor
    ) -> Tensor:
        """Return `[K, P]`: the last probe's scores plus their predicted change since then."""
        ridge = RIDGE_PENALTY * torch.eye(self.num_inputs, dtype=DTYPE)
        coefficients = torch.linalg.solve(policy_state["gram"] + ridge, policy_state["cross"])
        change = (inputs @ coefficients).clamp(-MAX_PREDICTED_CHANGE, MAX_PREDICTED_CHANGE)
        has_trained_since = policy_state["probe_round"][ids] < client_table["reply_round"][ids]
        scores: Tensor = policy_state["scores"][ids]
        return scores + torch.where(has_trained_since[:, None], change, 0.0)

    def new_reports(
        self, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return who probed; the report tells the effect of the part of the probe before."""
        return policy_state["probe_requested"][ids], policy_state["action"][ids]

    def learn(
        self,
        server: Server,
        client_table: State,
        policy_state: State,
        ids: Tensor,
        metrics: Params,
    ) -> State:
        """Store transitions, probe results and the evidence of the regression."""
        probed = policy_state["probe_requested"][ids]
        policy_state = self.store_transitions(client_table, policy_state, ids[probed])
        scores = metrics["scores"]

        # Clients with an earlier probe show how scores change.
        has_pair = probed & (policy_state["probe_round"][ids] > 0)
        inputs = policy_state["regression_inputs"][ids][has_pair]
        last_scores = policy_state["scores"][ids][has_pair]
        if len(last_scores):
            predicted = policy_state["predicted_scores"][ids][has_pair]
            server.logged["last_probe_error"] = (scores[has_pair] - last_scores).abs().mean()
            server.logged["prediction_error"] = (scores[has_pair] - predicted).abs().mean()

        installed = client_table["installed_part"][ids]
        is_confirmed = policy_state["client_chooses"][ids] & (
            installed == client_table["assigned_part"][ids]
        )
        doubled = (2 * policy_state["probe_interval"][ids]).clamp(max=self.config.probe_every)
        rows = {
            "scores": scores,
            "probe_round": torch.full_like(ids, server.round),
            "probe_interval": torch.where(is_confirmed, doubled, MIN_PROBE_INTERVAL),
            "features": policy_state["current_features"][ids],
            "base_values": policy_state["part_values"][ids],
            "action": installed,
            "is_open": torch.ones_like(probed),
        }
        probed_rows = {name: values[probed] for name, values in rows.items()}
        gram = EVIDENCE_DECAY * policy_state["gram"] + inputs.T @ inputs
        cross = EVIDENCE_DECAY * policy_state["cross"] + inputs.T @ (scores[has_pair] - last_scores)
        return {**write_rows(policy_state, ids[probed], probed_rows), "gram": gram, "cross": cross}

    def store_transitions(self, client_table: State, policy_state: State, ids: Tensor) -> State:
        """Store what the parts of the previous probes led to, for clients that probed now."""
        open_ids = ids[policy_state["is_open"][ids]]
        if not len(open_ids):
            return policy_state
        part = policy_state["action"][open_ids]
        state = policy_state["features"][open_ids]
        transitions = {
            "state": state,
            "action": part,
            "reward": client_table["reward"][open_ids],
            "base": policy_state["base_values"][open_ids, part],
            "next": state,  # not used: the discount is 0
            "discount": torch.zeros(len(open_ids), dtype=DTYPE),
            "round": policy_state["probe_round"][open_ids],
        }
        return {**policy_state, "agent": add_to_buffer(policy_state["agent"], transitions)}
