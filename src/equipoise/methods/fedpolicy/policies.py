"""Policies that choose the part of the model that each client installs.

This file has what all of them have in common, and those without a rule or a network.

| `--policy` | class | chooses |
|---|---|---|
| a part, or `full:0.8,none` | `SchedulePolicy` | one part for all, by the share of the run |
| `random` | `RandomPart` | any allowed part, stratified over the clients of a round |
| `gate` | `gate.GatePolicy` | `full` while the received backbone suits the client, by a rule |
| `trained` | `learned.TrainedPolicy` | by a network that was trained across federations |
| `dqn` | `learned.OnlineDqn` | by a Q-network that all clients share, learned within the run |

`gate`, `trained` and `dqn` *hold* a part for a twelfth of the run. At the end of a hold a client
*probes*: it is sent the whole model and scores, on its validation rows and before it trains, the
model that it would start from after installing each part. The score of `none` is that of its own
model.

Symbols: N clients in all, K clients in a round, P parts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equipoise.core import Client, Params, Server, State
from equipoise.methods.fedpolicy.state import BlockSets, write_rows
from equipoise.rl.nn import DTYPE
from equipoise.utils import rng
from equipoise.utils.errors import UsageError, did_you_mean

DECISIONS_PER_RUN = 12  # a part is held for a twelfth of the run


def hold_rounds(num_rounds: int) -> int:
    """Return for how many rounds a client keeps its part: a twelfth of the run, at least one."""
    return max(1, round(num_rounds / DECISIONS_PER_RUN))


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


# --- at the server -------------------------------------------------------------------------------


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
    if len(last.split()) > 1:
        problems.append(f"'{last}' has blanks: put commas between the parts")
    elif ":" in last:
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
    """Return random parts `[K]`: in a round each allowed part goes to equally many clients.

    Args:
        server: The server of this round.
        config: The parts and which of them are allowed.
        ids: The clients `[K]`.
    """
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
        """Return the parts `[K]` that these clients hold from now on, and the policy state.

        Args:
            server: The server of this round.
            client_table: What is recorded of all clients.
            policy_state: The policy's own state.
            ids: The clients `[K]`.
        """

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
