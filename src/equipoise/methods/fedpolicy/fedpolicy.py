"""FedPolicy: which part of the aggregate each client gets back, chosen before the download; over any sound base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import (
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
from equipoise.methods._composition import ComposedMethod
from equipoise.methods.fedpolicy import policies
from equipoise.methods.fedpolicy import policies as probes
from equipoise.methods.fedpolicy import state as record
from equipoise.methods.fedpolicy.policies import Learned
from equipoise.methods.fedpolicy.state import PUBLISHED, Parts, choices_of, freshness
from equipoise.utils.errors import UsageError

POLICIES: dict[str, type[policies.Policy]] = {
    "random": policies.Random,
    "probe": policies.Probe,
    "bandit": policies.Bandit,
    "dqn": policies.Dqn,
    "learned": Learned,
}


@dataclass(frozen=True)
class FedPolicy(ComposedMethod):
    """w_i <- full (B, H), backbone (B, own h), head (own b, H) or none (own b, h); the rest is the base's."""

    name: ClassVar[str] = "fedpolicy"
    family: ClassVar[str] = "redistribution"
    policy: str = option(
        "learned", "who chooses the part that a client gets back", choices=(*PUBLISHED, *POLICIES)
    )
    parts: str = option(
        "full,backbone,head",
        "what a policy may choose from, sets of the model's blocks such as shared+head; none may be added",
    )
    sync: str = option(
        "auto",
        "weights that know who installed what; auto is on for learned",
        choices=("on", "off", "auto"),
    )
    rho: float = option(
        0.5,
        "what an upload still counts for each round since its client installed the block",
        above=0,
        high=1,
    )
    price: float = option(
        0.01,
        "accuracy that a download of the whole model costs in a reward, and in the choices of learned, on average: "
        "with devices as much more or less as its time",
        low=0,
    )
    probe_bonus: float = option(
        0.01, "accuracy that a choice is credited for each block it shares", low=0
    )
    probe_every: int = option(16, "rounds between probes at most, for the policy learned", low=1)
    policy_gamma: float = option(
        0.5, "discount of the next round in the policy dqn", low=0, below=1
    )

    @property
    def report_ranges(self) -> Mapping[str, ValueRange]:  # type: ignore[override]
        told = {
            "part": ValueRange(0.0, len(self.sets) - 1.0),
            "scores": probes.SCORE,
            "report": record.REPORT,
        }
        return {**super().report_ranges, **told}

    @property
    def needs_previous_model(self) -> bool:  # type: ignore[override]
        return True

    @cached_property
    def agent(self) -> policies.Policy:
        rules = policies.Rules(
            self.sets,
            self.choices,
            self.policy_gamma,
            self.probe_bonus,
            self.probe_every,
            self.price,
        )
        return (
            policies.Always(rules, self.policy)
            if self.policy in PUBLISHED
            else POLICIES[self.policy](rules)
        )

    @cached_property
    def choices(self) -> tuple[str, ...]:
        return choices_of(self.parts)

    @cached_property
    def sets(self) -> Parts:
        """The sets of blocks among which the choices are."""
        return Parts.of(self.parts)

    @property
    def synced(self) -> bool:
        return self.sync == "on" or (self.sync == "auto" and isinstance(self.agent, Learned))

    def check(self, task: Task, training: TrainingConfig) -> None:
        if (
            len(self.choices) < 2
            or "full" not in self.choices
            or len(set(self.choices)) < len(self.choices)
        ):
            raise UsageError(
                f"parts is '{self.parts}': must be full and one or more of {', '.join(PUBLISHED[1:])}, or of sets of "
                f"the model's blocks ({', '.join(task.blocks)}) such as {'+'.join(task.blocks)}"
            )
        self.sets.check(task)
        if self.policy in PUBLISHED and self.policy not in self.sets.names:
            raise UsageError(f"policy is '{self.policy}', which is none of the parts {self.parts}")
        if (self.agent.probes or self.agent.learns) and not task.has_split("val"):
            raise UsageError(
                f"policy {self.policy} compares parts on validation data, and task '{task.name}' has none: "
                "set val_share"
            )
        self._check_base(task, training)

    def _check_base(self, task: Task, training: TrainingConfig) -> None:
        below, reason = self.inner, ""
        if "receive" in below.overridden_hooks:
            reason = "it decides itself how a client installs what it is sent"
        elif set(below.shared_param_names(task)) != {
            name for names in task.blocks.values() for name in names
        }:
            reason = "it keeps a part of the model at the clients, so that no choice is left"
        elif below.needs_common_start:
            reason = (
                "its memory of the clients' drift is sound only if all start from one whole model"
            )
        if reason:
            raise UsageError(
                f"{self.name} cannot sit on '{self.base}': {reason}; choose another --base"
            )
        self.require_two_blocks(task)
        self.inner.check(task, training)

    # --- client -----------------------------------------------------------------------------------------------------

    def init_client(self, task: Task, params: Params) -> State:
        state = super().init_client(task, params)
        return state | {"probe": probes.client_init(self.sets)} if self.agent.probes else state

    def receive(self, client: Client) -> tuple[Params, State]:
        """Decision 4b: what was sent, or what the server says of it, or what scores best of it."""
        inner, state = client.scoped("base"), dict(client.state)
        if self.agent.probes:
            words = client.message.per_client
            probe = probes.look(client, self.sets, client.state["probe"], words["look"])
            value = probes.worth(probe["scores"], words["trust"], words["lean"])
            best = value.masked_fill(~self.agent.rules.mask, -torch.inf).argmax(-1)
            part = torch.where(words["choose"], best, words["part"].long())
            state["probe"] = probe | {"part": part}
            inner.message = replace(
                client.message, sent_blocks=self.sets.sent(client.task, self.sets.taken(part))
            )
        start, state["base"] = self.inner.receive(inner)
        return start, state

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        up, state = super().upload(client)
        metrics = dict(up.metrics)
        if self.agent.probes:
            metrics |= {
                "part": state["probe"]["part"].to(torch.uint8),
                "scores": state["probe"]["scores"],
            }
        if self.agent.learns:
            metrics["report"] = (
                probes.report(state["probe"]) if self.agent.probes else record.report(client)
            )
        return ClientUpdate(up.params, up.extra, metrics), state

    # --- server -----------------------------------------------------------------------------------------------------

    def init_server(self, task: Task, params: Params) -> State:
        known = record.init(task.num_clients, self.sets)
        if self.agent.learns:
            known |= record.init_reports(task.num_clients, self.sets)
        return super().init_server(task, params) | {
            "known": known,
            "policy": self.agent.init(task.num_clients),
        }

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        down, state = super().distribute(server, ids)
        offer, memory = self.agent.offer(server, state["known"], state["policy"], ids)
        each = dict(down.per_client)
        if self.agent.probes:
            assert offer.trust is not None
            assert offer.lean is not None
            each |= {"part": offer.part.to(torch.uint8), "look": offer.look, "choose": offer.choose}
            each |= {"trust": offer.trust.float(), "lean": offer.lean.float()}
        known = {
            **state["known"],
            "offered": state["known"]["offered"].index_copy(0, ids, offer.part),
        }
        down = replace(
            down,
            sent_blocks=self.sets.sent(
                server.task, self.sets.takes[offer.part] | offer.look[:, None]
            ),
            per_client=each,
        )
        return down, {**state, "known": known, "policy": memory}

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        weights, state = super().aggregation_weights(server, ids, updates)
        part = (
            updates.metrics["part"].long() if self.agent.probes else state["known"]["offered"][ids]
        )
        server.logged["part"] = part
        state["known"] = record.note_parts(state["known"], ids, self.sets, part, server.round)
        if self.synced:
            if "aggregation_weights" not in self.inner.overridden_hooks:
                assert isinstance(weights, Tensor)
                weights = weights.sqrt()
            weights = self.sets.block_weights(
                server.task, updates.params, weights, self._fresh(server, state, ids)
            )
        return weights, state

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        params, state = super().aggregate(server, ids, updates, weights)
        if self.synced:
            params = self.sets.keep_stale(
                server.task, server.params, params, self._fresh(server, state, ids)
            )
        known = state["known"]
        if self.agent.learns:
            told, part = self.agent.told(known, state["policy"], ids)
            price = (
                self.price
                * self.sets.costs(server.task, server.params, ids)[torch.arange(len(ids)), part]
            )
            known = record.note_reports(
                known, ids[told], updates.metrics["report"][told], price[told], server.round
            )
            known = record.note_models(
                known, ids, self.sets, server.task, server.params, updates.params, params
            )
        memory = self.agent.learn(server, known, state["policy"], ids, updates.metrics)
        return params, {**state, "known": known, "policy": memory}

    def _fresh(self, server: Server, state: State, ids: Tensor) -> Tensor:
        return freshness(record.age(state["known"], ids, server.round), self.rho)
