"""The gate, the default policy: a rule that tells skewed labels from clients that differ in kind.

Symbols: N clients in all, K clients in a round, P parts; `...` are federations side by side.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.core import Params, Server, State
from equipoise.methods.fedpolicy.evidence import (
    certain_head_gain,
    shrunk_advantages,
    update_alignment,
)
from equipoise.methods.fedpolicy.policies import ProbingPolicy
from equipoise.methods.fedpolicy.state import write_rows
from equipoise.rl.nn import DTYPE

FULL_PART = 0  # the number of the whole model among the parts
NONE_PART = -1  # the number of the client's own model
BODY_PART = 1  # the number of the first part between: `backbone`, unless the user names sets

ALIGNED = 0.2  # alignment of a client's updates from which on it does not leave, or more:
ALIGNED_SHARE = 0.5  # this share of the clients' median alignment
LACK_COST = 0.4  # relative accuracy for which a lack of alignment of one counts
MIN_OTHERS = 4  # clients with which an update is compared
ALIGNED_ROUNDS = 5  # of a client that are compared, at most: near convergence like clients differ
LEAVE_MARGIN = 0.03  # relative accuracy by which the received backbone is worse for those who leave
LEAVE_SHARE = 0.5  # of those that still share may leave at once
MIN_KEEPERS = 0.5  # share of the clients that have not left, below which none keeps `full`
MIN_SHARERS = 0.15  # share of clients with a part other than `none` below which nobody has one
END_START = 0.72  # share of the run from which clients keep their own head
LAST_START = 0.9  # share of the run from which they keep their own backbone, too
SMOOTHING = 0.5  # weight of the newest probe


class GatePolicy(ProbingPolicy):
    """Take `full` while the received backbone suits the client, then let go of one block at a time.

    A probe tells whether a client differs in its labels alone or in kind: the received backbone
    under the client's own head is as good as the client's own model where labels are skewed, and
    worse where inputs or the meaning of labels differ. Evidence is pooled over clients
    (`evidence.shrunk_advantages`) and smoothed over probes. It is noisy where validation rows are
    few, so that a second fact counts, which needs none: whether the client's first updates point
    where those of the others do (`evidence.update_alignment`).

    - Clients for which it is clearly worse and whose updates are not aligned leave early, the worst
      first and at most half of those that still share at once: the model then moves towards the
      others, whom it may suit again.
      From then on a client takes, after each probe, what scores best: `full`, `backbone` or `none`.
      If fewer than 15 % of the clients would share anything, nobody does.
    - The others take `full` for three quarters of the run, then `backbone`, and `none` in the last
      tenth; those whose own model is no better than the received one keep `full` to the end, if
      they are at least half of them and the received head has been better than own ones over all
      probes (`evidence.certain_head_gain`).
    """

    def init(self, num_clients: int) -> State:
        """Return the state in which nobody has probed or left."""
        num_parts = len(self.config.parts)
        return super().init(num_clients) | {
            "smoothed_scores": torch.zeros(num_clients, num_parts, dtype=DTYPE),
            "score_sum": torch.zeros(num_clients, num_parts, dtype=DTYPE),  # over all probes
            "probe_count": torch.zeros(num_clients, dtype=DTYPE),
            "has_left": torch.zeros(num_clients, dtype=torch.bool),
            "alignment_sum": torch.zeros(num_clients, dtype=DTYPE),  # over the rounds that count
            "alignment_count": torch.zeros(num_clients, dtype=DTYPE),  # of these rounds
        }

    def record_updates(
        self, server: Server, policy_state: State, ids: Tensor, updates: Params
    ) -> State:
        """Record whether first updates are aligned, of clients that have always taken `full`."""
        is_first = policy_state["decision_round"][ids] == 0
        is_first &= policy_state["alignment_count"][ids] < ALIGNED_ROUNDS
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
        rows = {
            "smoothed_scores": torch.lerp(old, scores[probed], SMOOTHING),
            "score_sum": policy_state["score_sum"][probed_ids] + scores[probed],
            "probe_count": policy_state["probe_count"][probed_ids] + 1.0,
        }
        policy_state = super().record_probes(server, policy_state, ids, scores)
        return write_rows(policy_state, probed_ids, rows)

    def decide(
        self, server: Server, client_table: State, policy_state: State, ids: Tensor
    ) -> tuple[Tensor, State]:
        """Say who leaves, and choose each client's part."""
        scores = policy_state["smoothed_scores"]
        all_ids = torch.arange(len(scores))
        is_known = policy_state["probe_round"] > 0
        advantages = shrunk_advantages(scores, is_known, server.task.num_rows(all_ids, "val"))
        probe_count = policy_state["probe_count"].clamp(min=1.0)
        mean_scores = policy_state["score_sum"] / probe_count[:, None]
        head_gain = certain_head_gain(mean_scores, is_known, advantages)
        over = (server.round - 1) / server.num_rounds
        advantage = (advantages.center + advantages.deviation)[ids]
        gain = (scores[:, BODY_PART] - scores[:, NONE_PART])[ids]
        has_left = policy_state["has_left"][ids]
        lack = lack_of_alignment(mean_alignment(policy_state), policy_state["alignment_count"] > 0)
        evidence = GateEvidence(advantage, gain, lack[ids], head_gain)
        part, has_left = gate_decisions(evidence, has_left, over, self.choices)
        return part, write_rows(policy_state, ids, {"has_left": has_left})


def mean_alignment(policy_state: State) -> Tensor:
    """Return the mean alignment of all clients `[N]`; one where nothing is known."""
    count = policy_state["alignment_count"]
    mean = policy_state["alignment_sum"] / count.clamp(min=1.0)
    return torch.where(count > 0, mean, 1.0)


def lack_of_alignment(alignment: Tensor, is_known: Tensor) -> Tensor:
    """Return how much alignment each client lacks `[..., N]`: 0 where it is aligned or unknown.

    Where updates of most clients are well aligned, those of a client that differs in kind may be
    above `ALIGNED` and still far below those of the others.

    Args:
        alignment: Alignment of all clients `[..., N]`.
        is_known: Whether it is known `[..., N]`.
    """
    known = alignment.masked_fill(~is_known, math.nan)
    median = known.nanmedian(-1, keepdim=True).values.nan_to_num(0.0)
    needed = (ALIGNED_SHARE * median).clamp(min=ALIGNED)
    return (needed - alignment).clamp(min=0.0) * is_known


class GateEvidence(NamedTuple):
    """What the gate decides by; `...` are federations side by side.

    Attributes:
        advantage: Of parts over the client's own model, relative and shrunk `[..., K, P - 1]`.
        gain: Accuracy of the received backbone less that of the own model `[..., K]`.
        lack: Of alignment of the client's first updates with those of the others `[..., K]`.
        head_gain: Of the received head over clients' own heads, for all clients `[..., 1]`.
    """

    advantage: Tensor
    gain: Tensor
    lack: Tensor
    head_gain: Tensor


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
    cost = LACK_COST * evidence.lack[..., None]
    advantage = torch.nn.functional.pad(evidence.advantage - cost, (0, 1))
    if over < END_START:
        is_worse = (advantage[..., BODY_PART] < -LEAVE_MARGIN) & (evidence.lack > 0)
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
        is_as_good = (advantage[..., FULL_PART] >= 0) & (evidence.head_gain >= 0)
        keeps_full = is_as_good & ~has_left
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
    max_leaving = (LEAVE_SHARE * shares.sum(-1, keepdim=True) + 0.5).floor().clamp(min=1)
    rank = torch.where(is_worse, gain, math.inf).argsort(stable=True).argsort(stable=True)
    return is_worse & (rank < max_leaving)
