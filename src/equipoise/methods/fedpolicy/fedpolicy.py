"""FedPolicy: which part of the aggregate each client gets back, chosen before the download; over any sound base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Client, Down, Range, Server, State, Task, Training, Tree, Up, option
from equipoise.contract.ranges import SHARE
from equipoise.core.errors import UsageError
from equipoise.methods.fedpolicy import lookahead, policies, probes, record
from equipoise.methods.fedpolicy.foresight import Learned
from equipoise.methods.fedpolicy.parts import PUBLISHED, Parts, choices_of, freshness
from equipoise.methods.over import Over

POLICIES: dict[str, type[policies.Policy]] = {
    "random": policies.Random,
    "probe": policies.Probe,
    "bandit": policies.Bandit,
    "dqn": policies.Dqn,
    "learned": Learned,
    "lookahead": lookahead.LookAhead,
}
USABLE = 0.5  # of the own model's accuracy: below it the global model tells of other clients only


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
        "weights that know who installed what; auto is on for learned and lookahead",
        choices=("on", "off", "auto"),
    )
    rho: float = option(
        0.5, "what an upload still counts for each round since its client installed the block", above=0, high=1
    )
    copies: int = option(
        0, "rounds between those in which clients also train a copy of the global model; 0 for never", low=0
    )
    price: float = option(
        0.01,
        "accuracy that a download of the whole model costs in a reward, and in the choices of learned and lookahead, "
        "on average: with devices as much more or less as its time",
        low=0,
    )
    probe_bonus: float = option(0.01, "accuracy that a choice is credited for each block it shares", low=0)
    probe_every: int = option(16, "rounds between probes at most, for the policies learned and lookahead", low=1)
    policy_gamma: float = option(0.5, "discount of the next round in the policy dqn", low=0, below=1)

    @property
    def reports(self) -> Mapping[str, Range]:  # type: ignore[override]
        told = {
            "part": Range(0.0, len(self.sets) - 1.0),
            "scores": probes.SCORE,
            "report": record.REPORT,
            "copied": SHARE,
        }
        return {**super().reports, **told}

    @property
    def keeps_model(self) -> bool:  # type: ignore[override]
        return True

    @property
    def decides(self) -> frozenset[str]:
        return (self._own if self.agent.ahead else self._own - {"update"}) | self.below.decides

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
        if (self.agent.probes or self.agent.learns or self.copies) and not task.has("val"):
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

    @property
    def looks(self) -> bool:
        """Whether clients may be asked to probe; they are told their part then, since more is sent."""
        return self.agent.probes or self.copies > 0

    def client_init(self, task: Task, params: Tree) -> State:
        state = super().client_init(task, params)
        if not self.looks:
            return state
        more = lookahead.client_init() if self.agent.ahead else {}
        return state | {"probe": probes.client_init(self.sets) | more}

    def install(self, c: Client) -> tuple[Tree, State]:
        """Decision 4b: what was sent, or what the server says of it, or what scores best of it."""
        inner, state = c.within("base"), dict(c.state)
        if self.looks:
            words = c.down.each
            state["probe"], part = probes.look(c, self.sets, c.state["probe"], words["look"]), words["part"].long()
            if self.agent.probes:
                value = probes.worth(state["probe"]["scores"], words["trust"], words["lean"])
                value = value.masked_fill(~self.agent.rules.mask, -torch.inf)
                best = value.argmax(-1)
                part = torch.where(words["choose"], best, part)
                if self.agent.ahead:
                    state["probe"] = state["probe"] | {"second": lookahead.runner_up(value, best)}
            state["probe"] = state["probe"] | {"part": part}
            inner.down = replace(c.down, sent=self.sets.sent(c.task, self.sets.taken(part)))
        start, state["base"] = self.below.install(inner)
        return start, state

    def update(self, c: Client) -> tuple[Tree, State]:
        trained, state = super().update(c)
        return lookahead.both(c, self.below, self.sets, trained, state) if self.agent.ahead else (trained, state)

    def upload(self, c: Client) -> tuple[Up, State]:
        up, state = super().upload(c)
        metrics = dict(up.metrics)
        if self.copying(c.round):
            up, metrics["copied"] = self._copy(c, up)
        if self.agent.probes:
            metrics |= {"part": state["probe"]["part"].to(torch.uint8), "scores": state["probe"]["scores"]}
        if self.agent.learns:
            metrics["report"] = probes.report(state["probe"]) if self.agent.probes else record.report(c)
        return Up(up.params, up.extra, metrics), state

    def copying(self, round: int) -> bool:
        return self.copies > 0 and round % self.copies == 0

    def _copy(self, c: Client, up: Up) -> tuple[Up, Tensor]:
        """Where the global model is of use, the upload is a copy of it, trained apart from the personal model."""
        acc = c.state["probe"]["acc"]
        useful = acc[0] >= USABLE * acc[-1]
        gradients = c.notes.get("gradients", c.steps(c.train)) * (1 + useful.long())
        if c.anybody(useful):
            inner = c.within("base")
            inner.start = c.down.params
            inner.trained, inner.state = self.below.update(inner)
            copied, _ = self.below.upload(inner)
            up = replace(
                up, params={name: torch.where(useful, copied.params[name], w) for name, w in up.params.items()}
            )
        c.notes["gradients"] = gradients
        return up, useful

    # --- server -----------------------------------------------------------------------------------------------------

    def server_init(self, task: Task, params: Tree) -> State:
        known = record.init(task.clients, self.sets)
        if self.agent.learns:
            known |= record.init_reports(task.clients, self.sets)
        return super().server_init(task, params) | {"known": known, "policy": self.agent.init(task.clients)}

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        down, state = super().give(s, ids)
        whole = self.copying(s.round)
        offer, memory = self.agent.offer(s, state["known"], state["policy"], ids, whole)
        each, look = dict(down.each), offer.look | whole
        if self.looks:
            each |= {"part": offer.part.to(torch.uint8), "look": look}
        if self.agent.probes:
            assert offer.trust is not None
            assert offer.lean is not None
            each |= {"choose": offer.choose, "trust": offer.trust.float(), "lean": offer.lean.float()}
        known = {**state["known"], "offered": state["known"]["offered"].index_copy(0, ids, offer.part)}
        down = replace(down, sent=self.sets.sent(s.task, self.sets.takes[offer.part] | look[:, None]), each=each)
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
            weights = self.sets.block_weights(s.task, up.params, weights, self._fresh(s, state, ids, up))
        return weights, state

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        params, state = super().aggregate(s, ids, up, weights)
        if self.synced:
            params = self.sets.keep_stale(s.task, s.params, params, self._fresh(s, state, ids, up))
        known = state["known"]
        if self.agent.learns:
            told, part = self.agent.told(known, state["policy"], ids)
            price = self.price * self.sets.costs(s.task, s.params, ids)[torch.arange(len(ids)), part]
            known = record.note_reports(known, ids[told], up.metrics["report"][told], price[told], s.round)
            known = record.note_models(known, ids, self.sets, s.task, s.params, up.params, params)
        memory = self.agent.learn(s, known, state["policy"], ids, up.metrics)
        return params, {**state, "known": known, "policy": memory}

    def _fresh(self, s: Server, state: State, ids: Tensor, up: Up) -> Tensor:
        age = record.age(state["known"], ids, s.round)
        if "copied" in up.metrics:
            age = age.masked_fill(up.metrics["copied"][:, None], 0)
        return freshness(age, self.rho)
