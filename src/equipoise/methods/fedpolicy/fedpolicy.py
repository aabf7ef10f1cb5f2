"""FedPolicy: which part of the global model each client installs, decided before the download.

*FedPolicy: An RL-Guided Redistribution Policy for Synergizing Local-Global Optimization in
Federated Learning*, submission 8251. Only the abstract is public; `docs/methods/fedpolicy.md` marks
which ideas are ours.

With the global model (B, H) of backbone and head, and a client's own (b, h), a client starts from

    full (B, H)     backbone (B, h)     head (b, H)     none (b, h)

FedPolicy sits on a base method, whose other decisions stay as they are: by default FedAvg with
server momentum, and plain FedAvg if the policy is one part for all. One round:

  1. the server assigns a part to each client and may ask it to probe (`distribute`);
  2. a client that probes scores all parts, then installs the one assigned (`receive`);
  3. it trains as the base does and reports its scores, if it probes (`upload`);
  4. the server weighs uploads, per block if `block_weights` is on (`aggregation_weights`);
  5. it aggregates as the base does; blocks that few clients hold move less (`aggregate`).

`state.py` holds the parts and the server's records of clients, `policies.py` what policies have in
common, `gate.py` the default with its `evidence.py`, `learned.py` the learned policies,
`network.py` what they observe, `training.py` and `simulator.py` how they were trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import (
    Capabilities,
    Client,
    ClientUpdate,
    Params,
    Server,
    ServerMessage,
    State,
    Task,
    TrainingConfig,
    ValueRange,
    option,
)
from equipoise.core.report_validation import FRACTION
from equipoise.methods._composition import ComposedMethod
from equipoise.methods.fedpolicy import policies, state
from equipoise.methods.fedpolicy.gate import GatePolicy
from equipoise.methods.fedpolicy.learned import OnlineDqn, TrainedPolicy
from equipoise.methods.fedpolicy.policies import PolicyConfig
from equipoise.methods.fedpolicy.state import BASE_MOMENTUM, PAPER_PARTS, BlockSets
from equipoise.rl.nn import DTYPE
from equipoise.utils.errors import UsageError, did_you_mean

POLICIES: dict[str, type[policies.Policy]] = {
    "gate": GatePolicy,
    "trained": TrainedPolicy,
    "dqn": OnlineDqn,
    "random": policies.RandomPart,
}


@dataclass(frozen=True)
class FedPolicy(ComposedMethod):
    """Redistribution by a policy, over a base method.

    The server's state has three keys: `base` (the base's state), `client_table` (see
    `state.init_client_table`) and `policy_state` (see the policy's `init`). A client's state has
    `base` and, if the policy probes, `scores` `[P]`, those of this round's probe.
    """

    name: ClassVar[str] = "fedpolicy"
    family: ClassVar[str] = "redistribution"
    base: str = option(
        "auto",
        "method that takes all other decisions; auto: fedavg if the policy is one part for all, "
        "so that full is FedAvg, else fedavgm",
    )
    base_options: str = option(
        "",
        "options of that method, as 'name=value name=value'; empty: "
        f"server_momentum={BASE_MOMENTUM} for fedavgm, the defaults for others",
    )
    policy: str = option(
        "gate",
        "policy that chooses the part a client installs: one of "
        f"{', '.join(POLICIES)}, a part for all, or parts over the run such as full:0.8,none",
    )
    parts: str = option(
        "full,backbone,head,none",
        "parts that a policy may choose: full, backbone, head, none, or sets of blocks such as "
        "shared+head",
    )
    block_weights: str = option(
        "auto",
        "weigh uploads per block by how lately its client installed it; auto: on unless the policy "
        "is a part or a schedule",
        choices=("on", "off", "auto"),
    )
    staleness_decay: float = option(
        0.5,
        "factor of an upload's weight in a block for each round since its client installed it",
        above=0,
        high=1,
    )
    policy_file: str = option(
        "", "file of the policy trained, written by equipoise train-policy; empty: the shipped one"
    )

    @property
    def report_ranges(self) -> Mapping[str, ValueRange]:  # type: ignore[override]
        """The base's ranges, and that of the scores."""
        return {**super().report_ranges, "scores": FRACTION}

    @property
    def given_base(self) -> str:
        """Name of the base method; see `base`."""
        if self.base != "auto":
            return self.base
        return "fedavg" if self.policy in self.sets.names else "fedavgm"

    @property
    def given_base_options(self) -> str:
        """Options with which the base is built; see `base_options`."""
        if self.given_base == "fedavgm" and not self.base_options:
            return f"server_momentum={BASE_MOMENTUM}"
        return self.base_options

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Return those of the base, except that clients keep the blocks they do not install.

        Policies that probe also compare the clients' uploads with each other.
        """
        inner = self.inner.capabilities
        return replace(
            inner,
            aggregates_by_sum=inner.aggregates_by_sum and not self.agent.probes,
            needs_previous_model=True,
            sends_every_block=self.agent.always_full,
        )

    @property
    def overridden_hooks(self) -> frozenset[str]:
        """Without `receive` if clients do not probe: they merge what they are sent, as in FedAvg.

        The server checks the norms of updates by this, so that `full` drops whom FedAvg drops.
        """
        hooks = super().overridden_hooks
        return hooks if self.agent.probes else hooks - {"receive"}

    @cached_property
    def agent(self) -> policies.Policy:
        """The policy.

        Raises:
            UsageError: If there is no such policy.
        """
        config = PolicyConfig(self.sets, self.choices, self.policy_file)
        if self.policy in POLICIES:
            return POLICIES[self.policy](config)
        if not self.names_parts:
            known = (*POLICIES, *self.sets.names)
            raise UsageError(
                f"policy is '{self.policy}': must be one of {', '.join(known)}, or parts over the "
                f"run such as full:0.8,none{did_you_mean(self.policy, known)}"
            )
        return policies.SchedulePolicy(config, policies.parse_schedule(self.policy, self.sets))

    @property
    def names_parts(self) -> bool:
        """Whether the policy is a part or a schedule of parts."""
        return self.policy in self.sets.names or "," in self.policy or ":" in self.policy

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """Names of the parts that the policy may choose."""
        return state.parse_names(self.parts)

    @cached_property
    def sets(self) -> BlockSets:
        """All parts, among which are the choices."""
        return BlockSets.parse(self.parts)

    @property
    def uses_block_weights(self) -> bool:
        """Whether uploads are weighed per block."""
        if self.block_weights == "auto":
            return not isinstance(self.agent, policies.SchedulePolicy)
        return self.block_weights == "on"

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Check options and base.

        Raises:
            UsageError: If parts, policy, task and base do not fit together.
        """
        has_duplicates = len(set(self.choices)) < len(self.choices)
        if len(self.choices) < 2 or "full" not in self.choices or has_duplicates:
            raise UsageError(
                f"parts is '{self.parts}': must be full and one or more of "
                f"{', '.join(PAPER_PARTS[1:])}, or of sets of the model's blocks "
                f"({', '.join(task.info.blocks)}) such as {'+'.join(task.info.blocks)}"
            )
        self.sets.check(task)
        if self.agent.probes and not task.has_split("val"):
            raise UsageError(
                f"policy {self.policy} compares parts on validation data, and task "
                f"'{task.info.name}' has none: set val_share, or choose --policy full:0.8,none"
            )
        if self.policy_file and not isinstance(self.agent, TrainedPolicy):
            raise UsageError(
                f"policy_file is '{self.policy_file}', and policy {self.policy} reads no file: "
                "choose --policy trained or dqn, or leave policy_file out"
            )
        if isinstance(self.agent, TrainedPolicy):
            if self.sets.names != PAPER_PARTS:
                raise UsageError(
                    f"policy {self.policy} was trained on the parts {', '.join(PAPER_PARTS)}, and "
                    f"parts is '{self.parts}': choose another policy, such as full:0.8,"
                    f"{self.choices[-1]}"
                )
            _ = self.agent.network
        self._check_base(task, training)

    def _check_base(self, task: Task, training: TrainingConfig) -> None:
        """Raise a UsageError if the base cannot work with redistribution."""
        all_names = {name for names in task.info.blocks.values() for name in names}
        reason = ""
        if "receive" in self.inner.overridden_hooks or isinstance(self.inner, FedPolicy):
            reason = "it decides itself how a client installs what it is sent"
        elif set(self.inner.shared_param_names(task)) != all_names:
            reason = "it keeps a part of the model at the clients, so that no choice is left"
        elif self.inner.capabilities.needs_common_start:
            reason = (
                "its memory of the clients' drift is sound only if all start from one whole model"
            )
        if reason:
            raise UsageError(
                f"{self.name} cannot sit on '{self.given_base}': {reason}; choose another --base"
            )
        self.require_two_blocks(task)
        self.inner.check(task, training)

    # ------------------------------------------------------------------ client

    def init_client(self, task: Task, params: Params) -> State:
        """Add the scores of a probe, if the policy probes."""
        client_state = super().init_client(task, params)
        if self.agent.probes:
            client_state["scores"] = torch.zeros(len(self.sets), dtype=DTYPE)
        return client_state

    def receive(self, client: Client) -> tuple[Params, State]:
        """Probe if asked to, then install the assigned part."""
        inner = client.scoped("base")
        client_state = dict(client.state)
        if self.agent.probes:
            requested = client.message.per_client["probe"]
            scores = torch.zeros_like(client.state["scores"])
            if client.any_client(requested):
                scores = torch.where(requested, policies.probe_scores(client, self.sets), 0.0)
            client_state["scores"] = scores
            part = client.message.per_client["part"].long()
            sent_blocks = self.sets.sent_blocks(client.task, self.sets.membership_of(part))
            inner.message = replace(client.message, sent_blocks=sent_blocks)
        start, client_state["base"] = self.inner.receive(inner)
        return start, client_state

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Add the scores of the probe, if the policy probes."""
        update, client_state = super().upload(client)
        if not self.agent.probes:
            return update, client_state
        metrics = {**update.metrics, "scores": client_state["scores"]}
        return replace(update, metrics=metrics), client_state

    # ------------------------------------------------------------------ server

    def init_server(self, task: Task, params: Params) -> State:
        """Add the table of clients and the policy's state."""
        client_table = state.init_client_table(task.info.num_clients, self.sets)
        return {
            **super().init_server(task, params),
            "client_table": client_table,
            "policy_state": self.agent.init(task.info.num_clients),
        }

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Send each client its part, or everything if it probes, and the policy's requests."""
        message, server_state = super().distribute(server, ids)
        client_table = server_state["client_table"]
        assignment, policy_state = self.agent.assign(
            server, client_table, server_state["policy_state"], ids
        )
        per_client = dict(message.per_client)
        if self.agent.probes:
            per_client |= {
                "part": assignment.part.to(torch.uint8),
                "probe": assignment.probe,
            }
        if isinstance(self.agent, policies.SchedulePolicy):
            # Plain booleans: clients that start from one model compute as those of FedAvg do.
            part = self.agent.part_at(server.round, server.num_rounds)
            sent_blocks = self.sets.sent_blocks_of_all(server.task, part)
        else:
            downloads = self.sets.membership[assignment.part] | assignment.probe[:, None]
            sent_blocks = self.sets.sent_blocks(server.task, downloads)
        message = replace(message, sent_blocks=sent_blocks, per_client=per_client)
        new_state = {
            **server_state,
            "client_table": state.write_rows(client_table, ids, {"assigned_part": assignment.part}),
            "policy_state": policy_state,
        }
        return message, new_state

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        """Record parts and probes; weigh per block by w_i rho^age if `block_weights` is on."""
        weights, server_state = super().aggregation_weights(server, ids, updates)
        client_table = server_state["client_table"]
        part = client_table["assigned_part"][ids]
        server.logged["part"] = part
        client_table = state.record_parts(client_table, ids, self.sets, part, server.round)
        server_state["client_table"] = client_table
        if self.agent.probes:
            policy_state = self.agent.record_updates(
                server, server_state["policy_state"], ids, updates.params
            )
            server_state["policy_state"] = self.agent.record_probes(
                server, policy_state, ids, updates.metrics["scores"]
            )
        if not self.uses_block_weights:
            return weights, server_state
        staleness = self._staleness_weights(server, client_table, ids)
        return self.sets.block_weights(server.task, weights, staleness), server_state

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        """Aggregate as the base does from all uploads, and damp stale blocks."""
        if server.sum_updates is not None:
            return super().aggregate(server, ids, updates, weights)
        params, server_state = super().aggregate(server, ids, updates, weights)
        return self._damp_stale_blocks(server, server_state["client_table"], params), server_state

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """Apply the base's sums over clients, and damp stale blocks."""
        params, server_state = super().apply_sums(server, sums)
        return self._damp_stale_blocks(server, server_state["client_table"], params), server_state

    def _damp_stale_blocks(self, server: Server, client_table: State, params: Params) -> Params:
        """Return the aggregate, in which blocks move less that few clients installed lately."""
        if not self.uses_block_weights:
            return params
        replied = (client_table["reply_round"] == server.round).nonzero()[:, 0]
        staleness = self._staleness_weights(server, client_table, replied)
        # A block that nobody installed stays: its uploads tell of personal models alone.
        is_shared = staleness.max(0).values == 1.0
        staleness = torch.where(is_shared, staleness, 0.0)
        return self.sets.damp_stale_blocks(server.task, server.params, params, staleness)

    def _staleness_weights(self, server: Server, client_table: State, ids: Tensor) -> Tensor:
        """Return rho^age `[K, B]` for the blocks of these clients' uploads."""
        ages = state.block_ages(client_table, ids, server.round)
        return state.staleness_weight(ages, self.staleness_decay)
