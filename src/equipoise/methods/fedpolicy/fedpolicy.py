"""FedPolicy: which part of the aggregate each client gets back, chosen before the download; over any sound base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, Down, Range, Server, State, Task, Training, Tree, Up, option
from equipoise.core.errors import UsageError
from equipoise.methods.fedpolicy import policies, probes, record
from equipoise.methods.fedpolicy.foresight import Learned
from equipoise.methods.fedpolicy.parts import PUBLISHED, Parts, choices_of, freshness
from equipoise.methods.over import Over

POLICIES: dict[str, type[policies.Policy]] = {
    "random": policies.Random,
    "probe": policies.Probe,
    "bandit": policies.Bandit,
    "dqn": policies.Dqn,
    "learned": Learned,
}


@dataclass(frozen=True)
class FedPolicy(Over):
    """w_i <- full (B, H), backbone (B, own h), head (own b, H) or none (own b, h); the rest is the base's."""

    name: ClassVar[str] = "fedpolicy"
    family: ClassVar[str] = "redistribution"
    policy: str = option("learned", "who chooses the part that a client gets back", choices=(*PUBLISHED, *POLICIES))
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
        0.5, "what an upload still counts for each round since its client installed the block", above=0, high=1
    )
    price: float = option(
        0.01,
        "accuracy that a download of the whole model costs in a reward, and in the choices of learned, on average: "
        "with devices as much more or less as its time",
        low=0,
    )
    probe_bonus: float = option(0.01, "accuracy that a choice is credited for each block it shares", low=0)
    probe_every: int = option(16, "rounds between probes at most, for the policy learned", low=1)
    policy_gamma: float = option(0.5, "discount of the next round in the policy dqn", low=0, below=1)

    @property
    def reports(self) -> Mapping[str, Range]:  # type: ignore[override]
        told = {
            "part": Range(0.0, len(self.sets) - 1.0),
            "scores": probes.SCORE,
            "report": record.REPORT,
        }
        return {**super().reports, **told}

    @property
    def keeps_model(self) -> bool:  # type: ignore[override]
        return True

    @cached_property
    def agent(self) -> policies.Policy:
        rules = policies.Rules(
            self.sets, self.choices, self.policy_gamma, self.probe_bonus, self.probe_every, self.price
        )
        return policies.Always(rules, self.policy) if self.policy in PUBLISHED else POLICIES[self.policy](rules)

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

    def check(self, task: Task, training: Training) -> None:
        if len(self.choices) < 2 or "full" not in self.choices or len(set(self.choices)) < len(self.choices):
            raise UsageError(
                f"parts is '{self.parts}': must be full and one or more of {', '.join(PUBLISHED[1:])}, or of sets of "
                f"the model's blocks ({', '.join(task.blocks)}) such as {'+'.join(task.blocks)}"
            )
        self.sets.check(task)
        if self.policy in PUBLISHED and self.policy not in self.sets.names:
            raise UsageError(f"policy is '{self.policy}', which is none of the parts {self.parts}")
        if (self.agent.probes or self.agent.learns) and not task.has("val"):
            raise UsageError(
                f"policy {self.policy} compares parts on validation data, and task '{task.name}' has none: "
                "set val_share"
            )
        self._check_base(task, training)

    def _check_base(self, task: Task, training: Training) -> None:
        below, reason = self.below, ""
        if "install" in below.decides:
            reason = "it decides itself how a client installs what it is sent"
        elif set(below.shared_names(task)) != {name for names in task.blocks.values() for name in names}:
            reason = "it keeps a part of the model at the clients, so that no choice is left"
        elif below.one_start:
            reason = "its memory of the clients' drift is sound only if all start from one whole model"
        if reason:
            raise UsageError(f"{self.name} cannot sit on '{self.base}': {reason}; choose another --base")
        self.needs_two_blocks(task)
        self.below.check(task, training)

    # --- client -----------------------------------------------------------------------------------------------------

    def client_init(self, task: Task, params: Tree) -> State:
        state = super().client_init(task, params)
        return state | {"probe": probes.client_init(self.sets)} if self.agent.probes else state

    def install(self, c: Client) -> tuple[Tree, State]:
        """Decision 4b: what was sent, or what the server says of it, or what scores best of it."""
        inner, state = c.within("base"), dict(c.state)
        if self.agent.probes:
            words = c.down.each
            probe = probes.look(c, self.sets, c.state["probe"], words["look"])
            value = probes.worth(probe["scores"], words["trust"], words["lean"])
            best = value.masked_fill(~self.agent.rules.mask, -torch.inf).argmax(-1)
            part = torch.where(words["choose"], best, words["part"].long())
            state["probe"] = probe | {"part": part}
            inner.down = replace(c.down, sent=self.sets.sent(c.task, self.sets.taken(part)))
        start, state["base"] = self.below.install(inner)
        return start, state

    def upload(self, c: Client) -> tuple[Up, State]:
        up, state = super().upload(c)
        metrics = dict(up.metrics)
        if self.agent.probes:
            metrics |= {"part": state["probe"]["part"].to(torch.uint8), "scores": state["probe"]["scores"]}
        if self.agent.learns:
            metrics["report"] = probes.report(state["probe"]) if self.agent.probes else record.report(c)
        return Up(up.params, up.extra, metrics), state

    # --- server -----------------------------------------------------------------------------------------------------

    def server_init(self, task: Task, params: Tree) -> State:
        known = record.init(task.clients, self.sets)
        if self.agent.learns:
            known |= record.init_reports(task.clients, self.sets)
        return super().server_init(task, params) | {"known": known, "policy": self.agent.init(task.clients)}

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        down, state = super().give(s, ids)
        offer, memory = self.agent.offer(s, state["known"], state["policy"], ids)
        each = dict(down.each)
        if self.agent.probes:
            assert offer.trust is not None
            assert offer.lean is not None
            each |= {"part": offer.part.to(torch.uint8), "look": offer.look, "choose": offer.choose}
            each |= {"trust": offer.trust.float(), "lean": offer.lean.float()}
        known = {**state["known"], "offered": state["known"]["offered"].index_copy(0, ids, offer.part)}
        down = replace(down, sent=self.sets.sent(s.task, self.sets.takes[offer.part] | offer.look[:, None]), each=each)
        return down, {**state, "known": known, "policy": memory}

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        weights, state = super().weigh(s, ids, up)
        part = up.metrics["part"].long() if self.agent.probes else state["known"]["offered"][ids]
        s.notes["part"] = part
        state["known"] = record.note_parts(state["known"], ids, self.sets, part, s.round)
        if self.synced:
            if "weigh" not in self.below.decides:
                assert isinstance(weights, Tensor)
                weights = weights.sqrt()
            weights = self.sets.block_weights(s.task, up.params, weights, self._fresh(s, state, ids))
        return weights, state

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        params, state = super().aggregate(s, ids, up, weights)
        if self.synced:
            params = self.sets.keep_stale(s.task, s.params, params, self._fresh(s, state, ids))
        known = state["known"]
        if self.agent.learns:
            told, part = self.agent.told(known, state["policy"], ids)
            price = self.price * self.sets.costs(s.task, s.params, ids)[torch.arange(len(ids)), part]
            known = record.note_reports(known, ids[told], up.metrics["report"][told], price[told], s.round)
            known = record.note_models(known, ids, self.sets, s.task, s.params, up.params, params)
        memory = self.agent.learn(s, known, state["policy"], ids, up.metrics)
        return params, {**state, "known": known, "policy": memory}

    def _fresh(self, s: Server, state: State, ids: Tensor) -> Tensor:
        return freshness(record.age(state["known"], ids, s.round), self.rho)
