"""Who gets which part: every policy in one place. A policy offers before the download and learns from the replies."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.contract import Server, State, Params
from equipoise.core import random, streams
from equipoise.learners import dqn
from equipoise.learners.learning import DTYPE, remember
from equipoise.methods.fedpolicy import record
from equipoise.methods.fedpolicy.parts import Parts
from equipoise.methods.page.player import server_uniform

FULL = 0  # the place of the whole model among the parts
FULL_ROUNDS, STRATIFIED_ROUNDS = 5, 3
DOUBT = 15.0  # validation rows at which a probe counts half
EPSILON, LAST_EPSILON, FADE = 0.5, 0.05, 0.3  # exploration of the DQN, over this share of the rounds


@dataclass(frozen=True)
class Rules:
    """What the user decides about a policy."""

    parts: Parts
    allowed: tuple[str, ...]
    gamma: float
    bonus: float
    probe_every: int
    price: float

    @property
    def lean(self) -> Tensor:
        """``[parts]``: sharing is worth a bonus a block."""
        return self.bonus * self.parts.takes.sum(1).to(DTYPE)

    @property
    def mask(self) -> Tensor:
        return torch.tensor([part in self.allowed for part in self.parts.names])


@dataclass
class Offer:
    """To each of K clients: a part, whether the client probes all parts, and whether it chooses by what it finds."""

    part: Tensor
    look: Tensor
    choose: Tensor
    trust: Tensor | None = None
    """``[K, parts]``: how much of what a probe finds a choosing client believes."""
    lean: Tensor | None = None
    """``[K, parts]``: the value of each part as far as the probe is not believed."""

    @classmethod
    def of(cls, part: Tensor) -> Offer:
        nobody = torch.zeros(len(part), dtype=torch.bool)
        return cls(part, nobody, nobody)


@dataclass(frozen=True)
class Policy(ABC):
    rules: Rules
    probes: ClassVar[bool] = False
    """Whether clients score what they could hold when they are asked to, and may choose."""
    learns: ClassVar[bool] = False
    """Whether clients report how they fare."""

    def init(self, clients: int) -> State:
        return {}

    @abstractmethod
    def offer(self, server: Server, known: State, memory: State, ids: Tensor) -> tuple[Offer, State]:
        """``known``: the server's record of its clients; ``memory``: the policy's own."""

    def told(self, known: State, memory: State, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Which of these clients' reports are new, and of what parts they tell."""
        return torch.ones_like(ids, dtype=torch.bool), known["part"][ids]

    def learn(self, server: Server, known: State, memory: State, ids: Tensor, metrics: Params) -> State:
        return memory


@dataclass(frozen=True)
class Always(Policy):
    """The same part for everybody, always."""

    part: str = "full"

    def offer(self, server: Server, known: State, memory: State, ids: Tensor) -> tuple[Offer, State]:
        return Offer.of(torch.full_like(ids, self.rules.parts.index(self.part))), memory


class Random(Policy):
    """Any of the allowed parts."""

    def offer(self, server: Server, known: State, memory: State, ids: Tensor) -> tuple[Offer, State]:
        return Offer.of(anything(server, self.rules, ids)), memory


class Probe(Policy):
    """Everything is sent; after the first, full rounds each client installs what scores best."""

    probes = True

    def offer(self, server: Server, known: State, memory: State, ids: Tensor) -> tuple[Offer, State]:
        rows = server.task.num_rows(ids, "val").to(DTYPE)
        trust = (rows / (rows + DOUBT))[:, None].expand(-1, len(self.rules.parts))
        look = torch.ones_like(ids, dtype=torch.bool)
        lean = self.rules.lean.expand_as(trust)
        return Offer(torch.full_like(ids, FULL), look, look & (server.round > FULL_ROUNDS), trust, lean), memory


class Dqn(Policy):
    """A double DQN that all clients share: full rounds first, then stratified random ones, then epsilon-greedy."""

    learns = True

    @property
    def config(self) -> dqn.Config:
        return dqn.Config(record.features_of(self.rules.parts), len(self.rules.parts), gamma=self.rules.gamma)

    def init(self, clients: int) -> State:
        return {
            "agent": dqn.init(self.config, torch.zeros(dqn.init_draws(self.config), dtype=DTYPE)),
            "state": torch.zeros(clients, self.config.features, dtype=DTYPE),
            "base": torch.zeros(clients, len(self.rules.parts), dtype=DTYPE),
            "open": torch.zeros(clients, dtype=torch.bool),
        }

    def offer(self, server: Server, known: State, memory: State, ids: Tensor) -> tuple[Offer, State]:
        memory = self.experience(server, known, memory, ids)
        best = dqn.values(self.config, memory["agent"], memory["state"][ids]).masked_fill(~self.rules.mask, -math.inf)
        part = best.argmax(1)
        t = server.round - FULL_ROUNDS - STRATIFIED_ROUNDS
        if t <= 0:
            part = anything(server, self.rules, ids) if t > -STRATIFIED_ROUNDS else torch.full_like(ids, FULL)
        else:
            fading = EPSILON + (LAST_EPSILON - EPSILON) * min(1.0, t / (FADE * server.num_rounds))
            part = torch.where(draws(server, ids, 1, streams.POLICY[0])[:, 0] < fading, anything(server, self.rules, ids), part)
        return Offer.of(torch.where(known["round"][ids] > 0, part, FULL)), memory

    def experience(self, server: Server, known: State, memory: State, ids: Tensor) -> State:
        """Close the transitions of these clients with what is seen of them now, and learn."""
        config, now = self.config, record.features(known, ids, self.rules.parts, server)
        agent = self.watched(server, known, memory["agent"], ids, now)
        closed = memory["open"][ids]
        if bool(closed.any()):
            who = ids[closed]
            part, gap = known["part"][who], server.round - known["round"][who]
            rows = {
                "state": memory["state"][who],
                "action": part,
                "reward": known["reward"][who],
                "base": memory["base"][who, part],
                "next": now[closed],
                "discount": config.gamma ** gap.to(DTYPE) if config.gamma else torch.zeros(len(who), dtype=DTYPE),
                "round": known["round"][who],
            }
            agent = remember(agent, rows)
        return {
            **memory,
            "agent": self.studied(server, agent),
            "state": memory["state"].index_copy(0, ids, now),
            "open": memory["open"].index_fill(0, ids, False),
        }

    def watched(self, server: Server, known: State, agent: State, ids: Tensor, now: Tensor) -> State:
        """The agent, made in the first round, having seen these features of clients that have replied."""
        if server.round == 1:
            agent = dqn.init(self.config, server_uniform(server, dqn.init_draws(self.config), streams.POLICY[0]))
        return dqn.watch(agent, now[known["round"][ids] > 0])

    def studied(self, server: Server, agent: State) -> State:
        """The round's updates on what is remembered."""
        config = self.config
        u = server_uniform(server, config.steps * config.batch, streams.POLICY[1]).reshape(config.steps, config.batch)
        return dqn.learn(config, agent, self.rules.mask, server.round, u)

    def learn(self, server: Server, known: State, memory: State, ids: Tensor, metrics: Params) -> State:
        """A client's first report has no gain, so it opens no transition."""
        return {**memory, "open": memory["open"].index_copy(0, ids, known["reports"][ids] > 1)}


class Bandit(Dqn):
    """The DQN without foresight."""

    @property
    def config(self) -> dqn.Config:
        return dqn.Config(record.features_of(self.rules.parts), len(self.rules.parts), gamma=0.0)


def draws(server: Server, ids: Tensor, count: int, stream: int) -> Tensor:
    """Random numbers ``[K, count]`` of the server about these clients."""
    return torch.from_numpy(random.uniform(random.keys(server.seed, ids.numpy(), server.round, stream), count))


def anything(server: Server, rules: Rules, ids: Tensor) -> Tensor:
    """Random parts, stratified: in a round each allowed part goes to as many clients as any other."""
    allowed = rules.mask.nonzero()[:, 0]
    order = draws(server, ids, 1, streams.POLICY[2])[:, 0].argsort().argsort()
    return allowed[order % len(allowed)]
