"""Policies that choose the part of the model that each client installs.

| `--policy` | class | chooses |
|---|---|---|
| a part, or `full:0.8,none` | `SchedulePolicy` | one part for all, by the share of the run |
| `gate` | `GatePolicy` | `full` while the received backbone suits the client, by a rule |
| `random` | `RandomPart` | any allowed part, stratified over the clients of a round |
| `trained` | `TrainedPolicy` | by a network that was trained across federations |
| `dqn` | `OnlineDqn` | by a Q-network that all clients share, learned within the run |

`gate`, `trained` and `dqn` *hold* a part for a twelfth of the run. At the end of a hold a client
*probes*: it is sent the whole model and scores, on its validation rows and before it trains, the
model that it would start from after installing each part. The score of `none` is that of its own
model.

Symbols: N clients in all, K clients in a round, P parts, F features.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equipoise.core import Client, Params, Server, State
from equipoise.methods.fedpolicy.network import (
    FEATURES,
    FOUR_PARTS,
    Observation,
    PolicyNetwork,
    client_features,
    hold_rounds,
    load_network,
    shrunk_advantages,
)
from equipoise.methods.fedpolicy.state import TINY, BlockSets, write_rows
from equipoise.rl import dqn
from equipoise.rl.nn import DTYPE, add_to_buffer
from equipoise.utils import rng
from equipoise.utils.errors import UsageError, did_you_mean

FULL_PART = 0  # the number of the whole model among the parts
NONE_PART = -1  # the number of the client's own model
BODY_PART = 1  # the number of the first part between: `backbone`, unless the user names sets

# The gate.
ALIGNED = 0.2  # alignment of a client's updates from which on it does not leave
LACK_COST = 0.4  # relative accuracy for which a lack of alignment of one counts
MIN_OTHERS = 4  # clients with which an update is compared
LEAVE_MARGIN = 0.03  # relative accuracy by which the received backbone is worse for those who leave
LEAVE_SHARE = 0.5  # of those that still share may leave at once
MIN_KEEPERS = 0.5  # share of the clients that have not left, below which none keeps `full`
MIN_SHARERS = 0.15  # share of clients with a part other than `none` below which nobody has one
END_START = 0.72  # share of the run from which clients keep their own head
LAST_START = 0.9  # share of the run from which they keep their own backbone, too
SMOOTHING = 0.5  # weight of the newest probe

# The Q-network.
GAMMA = 0.9  # discount of one hold
PRIOR_WEIGHT = 0.02  # accuracy for which one unit of the trained policy's value counts
EPSILON_START = 0.3  # chance of a random part in the first decision; 0 in the last quarter
EXPLORED_SHARE = 0.75


def probe_scores(client: Client, parts: BlockSets) -> Tensor:
    """Return the accuracy `[P]` of the model after installing each part, before training.

    Parts that differ only in the last block share the computation of the others.
    """
    *body_names, head_names = parts.param_names(client.task)
    received = client.message.params
    heads = {name: torch.stack([received[name], client.local_params[name]]) for name in head_names}
    rows = [tuple(row) for row in parts.membership.tolist()]
    bodies = list(dict.fromkeys(row[:-1] for row in rows))
    accuracies = []
    for body in bodies:
        model = dict(client.local_params)
        for names, installed in zip(body_names, body, strict=True):
            if installed:
                model |= {name: received[name] for name in names}
        accuracy, _ = client.task.utility_and_loss(client.evaluate_heads(model, heads))
        accuracies.append(accuracy)
    # Each body was evaluated with the received head and with the client's own, in this order.
    order = [2 * bodies.index(row[:-1]) + (not row[-1]) for row in rows]
    return torch.cat(accuracies)[order].to(DTYPE)


# --- policies, at the server ----------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyConfig:
    """The user's choices about a policy.

    Attributes:
        parts: All parts.
        allowed: Names of the parts that may be chosen.
        policy_file: File of the trained policy; the shipped one if empty.
    """

    parts: BlockSets
    allowed: tuple[str, ...]
    policy_file: str = ""

    @property
    def allowed_mask(self) -> Tensor:
        """Booleans `[P]`: whether a part may be chosen."""
        return torch.tensor([part in self.allowed for part in self.parts.names])


class Assignment(NamedTuple):
    """The decision for each of the K clients of a round.

    Attributes:
        part: The part to install `[K]`.
        probe: Whether the client is sent everything and scores all parts `[K]`.
    """

    part: Tensor
    probe: Tensor


@dataclass(frozen=True)
class Policy(ABC):
    """A policy at the server.

    Attributes:
        config: The user's choices.
        probes: Whether clients probe when they are asked to.
    """

    config: PolicyConfig
    probes: ClassVar[bool] = False

    @property
    def always_full(self) -> bool:
        """Whether every client is sent the whole model in every round."""
        return False

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

    def record_updates(
        self, server: Server, policy_state: State, ids: Tensor, updates: Params
    ) -> State:
        """Return the policy state after the uploads of a round.

        Args:
            server: The server in this round.
            policy_state: The policy's own state.
            ids: The clients whose replies were accepted `[K]`.
            updates: Their models `[K, ...]`.
        """
        return policy_state

    def record_probes(
        self, server: Server, policy_state: State, ids: Tensor, scores: Tensor
    ) -> State:
        """Return the policy state after the replies of a round.

        Args:
            server: The server in this round.
            policy_state: The policy's own state.
            ids: The clients whose replies were accepted `[K]`.
            scores: Their probes `[K, P]`; zeros from clients that were not asked to.
        """
        return policy_state


@dataclass(frozen=True)
class SchedulePolicy(Policy):
    """The same part for all clients in a round, by the share of the run that is over.

    Attributes:
        parts_over_run: Pairs of a part's name and the share of the run at which it ends, in
            increasing order; the last share is 1. One pair is a fixed part.
    """

    parts_over_run: tuple[tuple[str, float], ...] = (("full", 1.0),)

    @property
    def always_full(self) -> bool:
        """Whether `full` is the only part."""
        return {name for name, _ in self.parts_over_run} == {"full"}

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
        return _without_probes(part), policy_state


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
        return _without_probes(stratified_random_parts(server, self.config, ids)), policy_state


def _without_probes(part: Tensor) -> Assignment:
    """Assign parts `[K]`; nobody probes."""
    return Assignment(part, torch.zeros_like(part, dtype=torch.bool))


def stratified_random_parts(server: Server, config: PolicyConfig, ids: Tensor) -> Tensor:
    """Return random parts `[K]`: in a round each allowed part goes to equally many clients."""
    allowed = config.allowed_mask.nonzero()[:, 0]
    draws = server.uniform_per_client(ids, 1, rng.POLICY[2])[:, 0]
    rank = draws.argsort().argsort()
    return allowed[rank % len(allowed)]


class ProbingPolicy(Policy):
    """Decides for a client after each of its probes; a part is held until the next one."""

    probes = True

    def init(self, num_clients: int) -> State:
        """Return the state in which nobody has probed."""
        num_parts = len(self.config.parts)

        def zeros(*shape: int, dtype: torch.dtype = DTYPE) -> Tensor:
            return torch.zeros(num_clients, *shape, dtype=dtype)

        return {
            "part": zeros(dtype=torch.int64),  # that the client holds
            "decision_round": zeros(dtype=torch.int64),  # of that part; 0: the start
            "probe_requested": zeros(dtype=torch.bool),  # in this round
            "probe_round": zeros(dtype=torch.int64),  # of the last probe; 0: none
            "scores": zeros(num_parts),  # at the last probe
            "previous_scores": zeros(num_parts),  # at the probe before, or the same
        }

    def assign(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Assignment, State]:
        """Decide for clients that have probed since their last decision; say who probes now."""
        probe_round = policy_state["probe_round"][ids]
        decision_round = policy_state["decision_round"][ids]
        # A probe is made before training, and so tells of the decisions of earlier rounds.
        is_due = (probe_round >= decision_round) & (probe_round > 0)
        if bool(is_due.any()):
            due_ids = ids[is_due]
            part, policy_state = self.decide(server, client_table, policy_state, due_ids)
            rows = {"part": part, "decision_round": torch.full_like(due_ids, server.round)}
            policy_state = write_rows(policy_state, due_ids, rows)
        hold = hold_rounds(server.num_rounds)
        probe = (server.round - probe_round >= hold) & (server.round < server.num_rounds)
        policy_state = write_rows(policy_state, ids, {"probe_requested": probe})
        server.logged["probes"] = int(probe.sum())
        return Assignment(policy_state["part"][ids], probe), policy_state

    @abstractmethod
    def decide(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Tensor, State]:
        """Return the parts `[K]` that these clients hold from now on, and the policy state."""

    def record_probes(
        self, server: Server, policy_state: State, ids: Tensor, scores: Tensor
    ) -> State:
        """Record the scores of clients that probed."""
        probed = policy_state["probe_requested"][ids]
        probed_ids = ids[probed]
        has_probed = policy_state["probe_round"][probed_ids, None] > 0
        last = policy_state["scores"][probed_ids]
        rows = {
            "scores": scores[probed],
            "previous_scores": torch.where(has_probed, last, scores[probed]),
            "probe_round": torch.full_like(probed_ids, server.round),
        }
        return write_rows(policy_state, probed_ids, rows)

    def mask(self, values: Tensor) -> Tensor:
        """Return values `[..., P]`, -inf for parts that are not allowed."""
        return values.masked_fill(~self.config.allowed_mask, -math.inf)


class GatePolicy(ProbingPolicy):
    """Take `full` while the received backbone suits the client, then let go of one block at a time.

    A probe tells whether a client differs in its labels alone or in kind: the received backbone
    under the client's own head is as good as the client's own model where labels are skewed, and
    worse where inputs or the meaning of labels differ. Evidence is pooled over clients
    (`shrunk_advantages`) and smoothed over probes. It is noisy where validation rows are few, so
    that a second fact counts, which needs none: whether the client's first updates point where
    those of the others do (`update_alignment`).

    - Clients for which it is clearly worse and whose updates are not aligned leave early, the worst
      first and at most half of those that still share at once: the model then moves towards the
      others, whom it may suit again.
      From then on a client takes, after each probe, what scores best: `full`, `backbone` or `none`.
      If fewer than 15 % of the clients would share anything, nobody does.
    - The others take `full` for three quarters of the run, then `backbone`, and `none` in the last
      tenth; those whose own model is no better than the received one keep `full` to the end, if
      they are at least half of them.
    """

    def init(self, num_clients: int) -> State:
        """Return the state in which nobody has probed or left."""
        num_parts = len(self.config.parts)
        return super().init(num_clients) | {
            "smoothed_scores": torch.zeros(num_clients, num_parts, dtype=DTYPE),
            "has_left": torch.zeros(num_clients, dtype=torch.bool),
            "alignment_sum": torch.zeros(num_clients, dtype=DTYPE),  # over the rounds that count
            "alignment_count": torch.zeros(num_clients, dtype=DTYPE),  # of these rounds
        }

    def record_updates(
        self, server: Server, policy_state: State, ids: Tensor, updates: Params
    ) -> State:
        """Record whether the updates of clients that have always taken `full` are aligned."""
        is_first = policy_state["decision_round"][ids] == 0
        if int(is_first.sum()) <= MIN_OTHERS:
            return policy_state
        *bodies, _ = self.config.parts.param_names(server.task)
        changes = [
            (updates[name][is_first] - server.params[name]).flatten(1)
            for names in bodies
            for name in names
        ]
        first_ids = ids[is_first]
        alignment = update_alignment(changes)
        rows = {
            "alignment_sum": policy_state["alignment_sum"][first_ids] + alignment,
            "alignment_count": policy_state["alignment_count"][first_ids] + 1.0,
        }
        return write_rows(policy_state, first_ids, rows)

    @cached_property
    def choices(self) -> Tensor:
        """Booleans `[P]`: full, and backbone and none where they are allowed; else all allowed."""
        allowed = self.config.allowed_mask
        preferred = torch.zeros_like(allowed)
        preferred[[BODY_PART, NONE_PART]] = allowed[[BODY_PART, NONE_PART]]
        if not bool(preferred.any()):
            return allowed
        preferred[FULL_PART] = True
        return preferred

    def record_probes(
        self, server: Server, policy_state: State, ids: Tensor, scores: Tensor
    ) -> State:
        """Record the scores of clients that probed, and smooth them."""
        probed = policy_state["probe_requested"][ids]
        probed_ids = ids[probed]
        is_first = policy_state["probe_round"][probed_ids, None] == 0
        old = torch.where(is_first, scores[probed], policy_state["smoothed_scores"][probed_ids])
        rows = {"smoothed_scores": torch.lerp(old, scores[probed], SMOOTHING)}
        policy_state = super().record_probes(server, policy_state, ids, scores)
        return write_rows(policy_state, probed_ids, rows)

    def decide(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Tensor, State]:
        """Say who leaves, and choose each client's part."""
        scores = policy_state["smoothed_scores"]
        everybody = torch.arange(len(scores))
        found = shrunk_advantages(
            scores, policy_state["probe_round"] > 0, server.task.num_rows(everybody, "val")
        )
        over = (server.round - 1) / server.num_rounds
        advantage = (found.center + found.deviation)[ids]
        gain = (scores[:, BODY_PART] - scores[:, NONE_PART])[ids]
        has_left = policy_state["has_left"][ids]
        evidence = GateEvidence(advantage, gain, mean_alignment(policy_state)[ids])
        part, has_left = gate_decisions(evidence, has_left, over, self.choices)
        return part, write_rows(policy_state, ids, {"has_left": has_left})


def update_alignment(changes: Sequence[Tensor]) -> Tensor:
    """Return the cosine `[..., K]` of each client's update with the sum of the others', as units.

    It is near zero for a client whose inputs or labels mean something else, and positive where
    clients share a task; no validation rows are needed.

    Args:
        changes: Uploads less the common start, of each parameter `[..., K, n]`.
    """
    squares = [change.to(DTYPE).square().sum(-1) for change in changes]
    norm = torch.stack(squares).sum(0).sqrt()
    has_moved = (norm > 0).to(DTYPE)
    scale = (1.0 / norm.clamp(min=TINY))[..., None]
    onto_total = torch.zeros_like(norm)
    total_square = torch.zeros_like(norm[..., :1])
    for change in changes:
        unit = change.to(DTYPE) * scale
        total = unit.sum(-2, keepdim=True)
        onto_total += (unit * total).sum(-1)
        total_square += total.square().sum(-1)
    # Of the sum without the client itself, whose unit update has the square one.
    onto_others = onto_total - has_moved
    others_square = total_square - 2.0 * onto_total + has_moved
    return onto_others / others_square.clamp(min=TINY).sqrt()


def mean_alignment(policy_state: State) -> Tensor:
    """Return the mean alignment of all clients `[N]`; one where nothing is known."""
    count = policy_state["alignment_count"]
    mean = policy_state["alignment_sum"] / count.clamp(min=1.0)
    return torch.where(count > 0, mean, 1.0)


class GateEvidence(NamedTuple):
    """What the gate decides by; `...` are federations side by side.

    Attributes:
        advantage: Of parts over the client's own model, relative and shrunk `[..., K, P - 1]`.
        gain: Accuracy of the received backbone less that of the own model `[..., K]`.
        alignment: Of the client's first updates with those of the others `[..., K]`.
    """

    advantage: Tensor
    gain: Tensor
    alignment: Tensor


def gate_decisions(
    evidence: GateEvidence, has_left: Tensor, over: float, choices: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the parts that the gate chooses `[..., K]`, and which clients have left `[..., K]`.

    Args:
        evidence: What is known of the clients.
        has_left: Which of them had left before `[..., K]`.
        over: Share of the run that is over.
        choices: Booleans `[P]`: the parts that may be chosen.
    """
    lack = (ALIGNED - evidence.alignment).clamp(min=0.0)
    advantage = torch.nn.functional.pad(evidence.advantage - LACK_COST * lack[..., None], (0, 1))
    if over < END_START:
        is_worse = (advantage[..., BODY_PART] < -LEAVE_MARGIN) & (lack > 0)
        has_left = has_left | leaving_clients(is_worse, evidence.gain, ~has_left)
    values = advantage.masked_fill(~choices, -math.inf)
    part = torch.where(has_left, values.argmax(-1), FULL_PART)
    none = len(choices) - 1
    if choices[none]:
        # The global model must not become the model of one or two clients.
        is_shared = (part != none).double().mean(-1, keepdim=True) >= MIN_SHARERS
        part = torch.where(is_shared, part, none)
    if over >= END_START:
        late = _late_part(values, over, choices)
        keeps_full = (advantage[..., FULL_PART] >= 0) & ~has_left
        # A head that few clients install becomes theirs: then nobody installs it, and it stays.
        shares = (~has_left).sum(-1, keepdim=True)
        keeps_full = keeps_full & (keeps_full.sum(-1, keepdim=True) >= MIN_KEEPERS * shares)
        part = torch.where(has_left | keeps_full, part, late)
    return part, has_left


def _late_part(values: Tensor, over: float, choices: Tensor) -> Tensor:
    """Return the parts `[..., K]` of the end for clients that shared: `backbone`, then `none`."""
    wanted = BODY_PART if over < LAST_START else NONE_PART
    if bool(choices[wanted]):
        return torch.full_like(values[..., 0], wanted % len(choices), dtype=torch.int64)
    return values[..., 1:].argmax(-1) + 1


def leaving_clients(is_worse: Tensor, gain: Tensor, shares: Tensor) -> Tensor:
    """Return which clients leave now: the worst of those for which sharing is clearly worse.

    Args:
        is_worse: For which clients it is `[..., K]`.
        gain: Of the received backbone over the own model, by which they are ranked `[..., K]`.
        shares: Which clients share so far `[..., K]`; at most half of them leave at once.
    """
    is_worse = is_worse & shares
    most = (LEAVE_SHARE * shares.sum(-1, keepdim=True) + 0.5).floor().clamp(min=1)
    rank = torch.where(is_worse, gain, math.inf).argsort(stable=True).argsort(stable=True)
    return is_worse & (rank < most)


class TrainedPolicy(GatePolicy):
    """A small network, trained by `equipoise train-policy`, that observes the gate's decisions."""

    @cached_property
    def network(self) -> PolicyNetwork:
        """The policy's network."""
        return load_network(self.config.policy_file)

    def observe(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Tensor, State]:
        """Let the gate decide, and return the features of these clients `[K, F]`."""
        part, policy_state = GatePolicy.decide(self, server, client_table, policy_state, ids)
        everybody = torch.arange(server.task.info.num_clients)
        seen = Observation(
            smoothed=policy_state["smoothed_scores"],
            accuracy=policy_state["scores"],
            previous=policy_state["previous_scores"],
            is_known=policy_state["probe_round"] > 0,
            installs=FOUR_PARTS.membership[client_table["installed_part"]],
            num_rows=server.task.num_examples(everybody),
            num_val_rows=server.task.num_rows(everybody, "val"),
            time_left=torch.tensor(1.0 - (server.round - 1) / server.num_rounds),
            gate_part=policy_state["part"].index_copy(0, ids, part),
            has_left=policy_state["has_left"],
            alignment=mean_alignment(policy_state),
        )
        return client_features(seen)[ids], policy_state

    def decide(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Tensor, State]:
        """Choose the part with the largest value."""
        features, policy_state = self.observe(server, client_table, policy_state, ids)
        return self.mask(self.network.logits(features)).argmax(1), policy_state


class OnlineDqn(TrainedPolicy):
    """A double DQN that all clients share and that learns within the run.

    A transition lasts from one decision to the next. Its reward is what the client's own model
    gained in validation accuracy meanwhile, less the mean gain of the clients that held `full` in
    the same time. The trained policy is its start: parts are chosen by Q + PRIOR_WEIGHT x value.
    """

    @property
    def dqn_config(self) -> dqn.Config:
        """The Q-network."""
        return dqn.Config(len(FEATURES), len(self.config.parts), gamma=GAMMA)

    def init(self, num_clients: int) -> State:
        """Return an agent and no open transition; the network is drawn in the first decision."""
        config = self.dqn_config
        return super().init(num_clients) | {
            "agent": dqn.init(config, torch.zeros(dqn.init_draws(config), dtype=DTYPE)),
            # Of each client's last decision.
            "features": torch.zeros(num_clients, config.features, dtype=DTYPE),
            "is_open": torch.zeros(num_clients, dtype=torch.bool),
        }

    def decide(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Tensor, State]:
        """Learn from the transitions that end here, then choose epsilon-greedily."""
        config = self.dqn_config
        now, policy_state = self.observe(server, client_table, policy_state, ids)
        agent = policy_state["agent"]
        if int(agent["normaliser"]["count"]) == 0:
            agent = dqn.init(config, server.uniform(dqn.init_draws(config), rng.POLICY[0]))
        agent = dqn.update_normaliser(agent, now)
        is_open = policy_state["is_open"][ids]
        open_ids = ids[is_open]
        if len(open_ids):
            reward = relative_gains(policy_state, ids)[is_open]
            transitions = {
                "state": policy_state["features"][open_ids],
                "action": policy_state["part"][open_ids],
                "reward": reward,
                "base": torch.zeros_like(reward),
                "next": now[is_open],
                "discount": torch.full_like(reward, config.gamma),
                "round": torch.full_like(open_ids, server.round),
            }
            agent = add_to_buffer(agent, transitions)
            draws = server.uniform(config.steps * config.batch, rng.POLICY[1])
            draws = draws.reshape(config.steps, config.batch)
            agent = dqn.learn(config, agent, self.config.allowed_mask, server.round, draws)
        values = dqn.values(config, agent, now)
        values = values + PRIOR_WEIGHT * self.network.logits(now)
        best = self.mask(values).argmax(1)
        progress = server.round / (EXPLORED_SHARE * server.num_rounds)
        epsilon = EPSILON_START * max(0.0, 1.0 - progress)
        explores = server.uniform_per_client(ids, 1, rng.POLICY[3])[:, 0] < epsilon
        part = torch.where(explores, stratified_random_parts(server, self.config, ids), best)
        rows = {"features": now, "is_open": torch.ones_like(explores)}
        return part, write_rows({**policy_state, "agent": agent}, ids, rows)


def relative_gains(policy_state: State, ids: Tensor) -> Tensor:
    """Return what own models gained since the probe before `[K]`, less what holders of full did.

    Where nobody held `full`, the mean over these clients takes its place.
    """
    own = policy_state["scores"][ids, NONE_PART]
    gain: Tensor = own - policy_state["previous_scores"][ids, NONE_PART]
    is_full = policy_state["part"][ids] == FULL_PART
    reference = gain[is_full] if bool(is_full.any()) else gain
    return gain - reference.mean()
