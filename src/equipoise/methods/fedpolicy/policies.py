"""A probe: the client scores what it would hold after each choice, on its validation rows, before it trains.

Before training a score measures how well the parts fit; after it the differences are noise. A client probes when it is
asked to, and is then sent the whole model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from equipoise.core import Client, Params, Server, State, ValueRange
from equipoise.methods.fedpolicy import state
from equipoise.methods.fedpolicy import state as record
from equipoise.methods.fedpolicy.state import Parts
from equipoise.rl import dqn
from equipoise.rl.nn import DTYPE, add_to_buffer
from equipoise.utils import rng

KEPT = 0.7  # of a smoothed score, each round
LOSS_PART, LOSS_MOST = 0.02, 3.0  # accuracy decides; the loss, bounded, breaks ties
SCORE = ValueRange(0.0, 1.0 + LOSS_PART * LOSS_MOST)  # of a part, as a client reports it


def client_init(parts: Parts) -> State:
    return {
        "scores": torch.zeros(len(parts), dtype=DTYPE),
        "acc": torch.zeros(len(parts), dtype=DTYPE),
        "loss": torch.zeros(len(parts), dtype=DTYPE),
        "entropy": torch.zeros(1, dtype=DTYPE),
        "round": torch.zeros((), dtype=torch.int64),
        "part": torch.zeros((), dtype=torch.int64),
    }


def score(acc: Tensor, loss: Tensor) -> Tensor:
    """Lower is better."""
    return 1.0 - acc + LOSS_PART * loss.clamp(max=LOSS_MOST)


def look(client: Client, parts: Parts, seen: State, asked: Tensor) -> State:
    """Accuracy, loss and smoothed score (lower is better) of every part, new where it was asked for."""
    if not client.any_client(asked):
        return seen
    acc, loss = (merit.to(DTYPE) for merit in _merits(client, parts))
    kept = torch.where(seen["round"] > 0, KEPT ** (client.round - seen["round"]).to(DTYPE), 0.0)
    now = torch.full_like(seen["round"], client.round)
    smooth = kept * seen["scores"] + (1 - kept) * score(acc, loss)
    new = {
        "scores": smooth,
        "acc": acc,
        "loss": loss,
        "entropy": state.entropy(client),
        "round": now,
    }
    return seen | {name: torch.where(asked, value, seen[name]) for name, value in new.items()}


def _merits(client: Client, parts: Parts) -> tuple[Tensor, Tensor]:
    """Accuracy and loss ``[parts]`` of what the client would hold; the last column's two variants share their body."""
    *columns, last = parts.params(client.task)
    heads = {
        name: torch.stack([client.message.params[name], client.local_params[name]]) for name in last
    }
    bodies = list(dict.fromkeys(tuple(row[:-1]) for row in parts.takes.tolist()))
    scores = []
    for taken in bodies:
        sent = {name for names, take in zip(columns, taken, strict=True) if take for name in names}
        model = {
            name: client.message.params[name] if name in sent else own
            for name, own in client.local_params.items()
        }
        scores.append(client.task.utility_and_loss(client.evaluate_heads(model, heads)))
    order = [2 * bodies.index(tuple(row[:-1])) + (not row[-1]) for row in parts.takes.tolist()]
    acc, loss = (torch.cat([merit[k] for merit in scores])[order] for k in (0, 1))
    return acc, loss


def report(seen: State) -> Tensor:
    """As :func:`record.report`: loss and accuracy of what the client had, and of what it installed instead."""
    part = torch.nn.functional.one_hot(seen["part"], len(seen["scores"])).to(DTYPE)
    had = [seen[name][-1] for name in ("loss", "acc")]
    took = [(part * seen[name]).sum() for name in ("loss", "acc")]
    return torch.cat([torch.stack([*had, *took]), seen["entropy"]])


def worth(scores: Tensor, trust: Tensor, lean: Tensor) -> Tensor:
    """The value of each part ``[..., parts]``: how much better than what one has, as far as that is trusted."""
    return lean - trust * (scores - scores[..., -1:])


FULL = 0  # the place of the whole model among the parts
FULL_ROUNDS, STRATIFIED_ROUNDS = 5, 3
DOUBT = 15.0  # validation rows at which a probe counts half
EPSILON, LAST_EPSILON, FADE = (
    0.5,
    0.05,
    0.3,
)  # exploration of the DQN, over this share of the rounds


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
    def offer(
        self, server: Server, known: State, memory: State, ids: Tensor
    ) -> tuple[Offer, State]:
        """``known``: the server's record of its clients; ``memory``: the policy's own."""

    def told(self, known: State, memory: State, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Which of these clients' reports are new, and of what parts they tell."""
        return torch.ones_like(ids, dtype=torch.bool), known["part"][ids]

    def learn(
        self, server: Server, known: State, memory: State, ids: Tensor, metrics: Params
    ) -> State:
        return memory


@dataclass(frozen=True)
class Always(Policy):
    """The same part for everybody, always."""

    part: str = "full"

    def offer(
        self, server: Server, known: State, memory: State, ids: Tensor
    ) -> tuple[Offer, State]:
        return Offer.of(torch.full_like(ids, self.rules.parts.index(self.part))), memory


class Random(Policy):
    """Any of the allowed parts."""

    def offer(
        self, server: Server, known: State, memory: State, ids: Tensor
    ) -> tuple[Offer, State]:
        return Offer.of(anything(server, self.rules, ids)), memory


class Probe(Policy):
    """Everything is sent; after the first, full rounds each client installs what scores best."""

    probes = True

    def offer(
        self, server: Server, known: State, memory: State, ids: Tensor
    ) -> tuple[Offer, State]:
        rows = server.task.num_rows(ids, "val").to(DTYPE)
        trust = (rows / (rows + DOUBT))[:, None].expand(-1, len(self.rules.parts))
        look = torch.ones_like(ids, dtype=torch.bool)
        lean = self.rules.lean.expand_as(trust)
        return Offer(
            torch.full_like(ids, FULL), look, look & (server.round > FULL_ROUNDS), trust, lean
        ), memory


class Dqn(Policy):
    """A double DQN that all clients share: full rounds first, then stratified random ones, then epsilon-greedy."""

    learns = True

    @property
    def config(self) -> dqn.Config:
        return dqn.Config(
            state.features_of(self.rules.parts), len(self.rules.parts), gamma=self.rules.gamma
        )

    def init(self, clients: int) -> State:
        return {
            "agent": dqn.init(self.config, torch.zeros(dqn.init_draws(self.config), dtype=DTYPE)),
            "state": torch.zeros(clients, self.config.features, dtype=DTYPE),
            "base": torch.zeros(clients, len(self.rules.parts), dtype=DTYPE),
            "open": torch.zeros(clients, dtype=torch.bool),
        }

    def offer(
        self, server: Server, known: State, memory: State, ids: Tensor
    ) -> tuple[Offer, State]:
        memory = self.experience(server, known, memory, ids)
        best = dqn.values(self.config, memory["agent"], memory["state"][ids]).masked_fill(
            ~self.rules.mask, -math.inf
        )
        part = best.argmax(1)
        t = server.round - FULL_ROUNDS - STRATIFIED_ROUNDS
        if t <= 0:
            part = (
                anything(server, self.rules, ids)
                if t > -STRATIFIED_ROUNDS
                else torch.full_like(ids, FULL)
            )
        else:
            fading = EPSILON + (LAST_EPSILON - EPSILON) * min(1.0, t / (FADE * server.num_rounds))
            part = torch.where(
                server.uniform_per_client(ids, 1, rng.POLICY[0])[:, 0] < fading,
                anything(server, self.rules, ids),
                part,
            )
        return Offer.of(torch.where(known["round"][ids] > 0, part, FULL)), memory

    def experience(self, server: Server, known: State, memory: State, ids: Tensor) -> State:
        """Close the transitions of these clients with what is seen of them now, and learn."""
        config, now = self.config, state.features(known, ids, self.rules.parts, server)
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
                "discount": config.gamma ** gap.to(DTYPE)
                if config.gamma
                else torch.zeros(len(who), dtype=DTYPE),
                "round": known["round"][who],
            }
            agent = add_to_buffer(agent, rows)
        return {
            **memory,
            "agent": self.studied(server, agent),
            "state": memory["state"].index_copy(0, ids, now),
            "open": memory["open"].index_fill(0, ids, False),
        }

    def watched(
        self, server: Server, known: State, agent: State, ids: Tensor, now: Tensor
    ) -> State:
        """The agent, made in the first round, having seen these features of clients that have replied."""
        if server.round == 1:
            agent = dqn.init(
                self.config, server.uniform(dqn.init_draws(self.config), rng.POLICY[0])
            )
        return dqn.update_normaliser(agent, now[known["round"][ids] > 0])

    def studied(self, server: Server, agent: State) -> State:
        """The round's updates on what is remembered."""
        config = self.config
        u = server.uniform(config.steps * config.batch, rng.POLICY[1]).reshape(
            config.steps, config.batch
        )
        return dqn.learn(config, agent, self.rules.mask, server.round, u)

    def learn(
        self, server: Server, known: State, memory: State, ids: Tensor, metrics: Params
    ) -> State:
        """A client's first report has no gain, so it opens no transition."""
        return {**memory, "open": memory["open"].index_copy(0, ids, known["reports"][ids] > 1)}


class Bandit(Dqn):
    """The DQN without foresight."""

    @property
    def config(self) -> dqn.Config:
        return dqn.Config(state.features_of(self.rules.parts), len(self.rules.parts), gamma=0.0)


def anything(server: Server, rules: Rules, ids: Tensor) -> Tensor:
    """Random parts, stratified: in a round each allowed part goes to as many clients as any other."""
    allowed = rules.mask.nonzero()[:, 0]
    order = server.uniform_per_client(ids, 1, rng.POLICY[2])[:, 0].argsort().argsort()
    return allowed[order % len(allowed)]


RESIDUAL = 10.0  # the residual pays this for its square: one round's reward is nearly all noise
EPSILON_FORESIGHT, CALM = (
    0.1,
    0.15,
)  # exploration of the runner-up, none in this last share of the rounds
CLOSE = 0.03  # a runner-up further behind is not explored: installing the wrong part destroys what a client has learned
RIDGE, FORGET = (
    20.0,
    0.98,
)  # of the prediction: penalty, and what is kept of its evidence each round
MOST = 0.2  # a score is never predicted to have changed by more
NOISE = (
    0.1  # variance of the difference of two scores on one row: how often two models disagree on it
)
FIRST_PAUSE = 2  # rounds between probes at first, and after a probe that did not confirm the choice
SHARERS = 0.1  # of the clients, at least, share the backbone until the calm, if their own evidence is for it


class Learned(Dqn):
    """Value of a part = how much better it scores than what the client has, shrunk to all clients' mean, + a residual.

    A client is sent everything and probes when its last probe is too long ago (2, 4, 8, .. up to ``probe_every`` rounds
    while probes confirm its choice), or when another part is foreseen to be better: it looks before it changes. In
    between, scores are predicted: their change since the last probe, by ridge regression on features that cost nothing.
    """

    probes = True

    @property
    def config(self) -> dqn.Config:
        return replace(super().config, gamma=0.0, residual=RESIDUAL, steps=4)

    @property
    def seen(self) -> int:
        """How many numbers :meth:`visible` has."""
        return 1 + self.config.features + 1 + len(self.rules.parts)

    def init(self, clients: int) -> State:
        parts, seen = len(self.rules.parts), self.seen

        def zeros(*shape: int, dtype: torch.dtype = DTYPE) -> Tensor:
            return torch.zeros(clients, *shape, dtype=dtype)

        return super().init(clients) | {
            "action": zeros(dtype=torch.int64),
            "asked": zeros(dtype=torch.bool),
            "chose": zeros(dtype=torch.bool),
            "probed": zeros(dtype=torch.int64),
            "pause": torch.full((clients,), FIRST_PAUSE, dtype=torch.int64),
            "scores": zeros(parts),
            "foreseen": zeros(parts),
            "seen": zeros(seen),
            "now": zeros(self.config.features),
            "worth": zeros(parts),
            "gram": torch.zeros(seen, seen, dtype=DTYPE),
            "cross": torch.zeros(seen, parts, dtype=DTYPE),
        }

    def offer(
        self, server: Server, known: State, memory: State, ids: Tensor
    ) -> tuple[Offer, State]:
        now = record.features(known, ids, self.rules.parts, server)
        memory = {
            **memory,
            "agent": self.studied(server, self.watched(server, known, memory["agent"], ids, now)),
        }
        seen = self.visible(server, memory, ids, now)
        foreseen = self.predicted(known, memory, ids, seen)
        trust, lean = self.pooled(server, memory, ids)
        lean = lean + dqn.values(self.config, memory["agent"], now)
        value = worth(foreseen, trust, lean).masked_fill(~self.rules.mask, -math.inf)
        ranked = value.sort(dim=1, descending=True, stable=True)
        starting = (known["round"][ids] == 0) | (server.round <= FULL_ROUNDS)
        left = max(0.0, 1.0 - server.round / ((1.0 - CALM) * server.num_rounds))
        best = torch.where(starting, FULL, ranked.indices[:, 0] if left else known["part"][ids])
        own = worth(foreseen, torch.ones_like(trust), self.plain(server, ids))
        own = own.masked_fill(~self.rules.mask, -math.inf)
        sharing = self.sharers(own, best) & bool(left)
        best = torch.where(sharing, own.argmax(1), best)
        late = server.round - memory["probed"][ids] >= memory["pause"][ids]
        surprise = (best != known["part"][ids]) & (server.round - memory["probed"][ids] > 1)
        look = (late | surprise) & bool(left) & (server.round >= FULL_ROUNDS)
        free = look & ~starting & ~sharing
        exploring = free & (
            server.uniform_per_client(ids, 1, rng.POLICY[0])[:, 0] < EPSILON_FORESIGHT * left
        )
        exploring &= ranked.values[:, 0] - ranked.values[:, 1] < CLOSE
        part = torch.where(exploring, ranked.indices[:, 1], best)
        choose = free & ~exploring
        server.logged["probes"] = int(look.sum())
        mean = value[:, self.rules.mask].mean(1, keepdim=True)
        base = torch.where(
            self.rules.mask, value - mean, 0.0
        )  # a state that is kept must be finite
        new = {
            "asked": look,
            "chose": choose,
            "foreseen": foreseen,
            "seen": seen,
            "now": now,
            "worth": base,
        }
        memory = {
            **memory,
            **{name: memory[name].index_copy(0, ids, rows) for name, rows in new.items()},
        }
        return Offer(part, look, choose, trust, lean), memory

    def pooled(self, server: Server, memory: State, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Empirical Bayes: few validation rows say little of one client, but those of all tell what clients are like.

        A difference of scores is a draw from N(mu, tau^2) over clients, seen with the noise of the client's own rows.
        """
        plain, probed = self.plain(server, ids), (memory["probed"] > 0).nonzero()[:, 0]
        if not len(probed):
            return torch.ones(len(ids), len(self.rules.parts), dtype=DTYPE), plain
        better = memory["scores"][probed] - memory["scores"][probed][:, -1:]
        mean, noise = better.mean(0), self.noise(server, ids)
        spread = ((better - mean).square().mean(0) - self.noise(server, probed).mean()).clamp(min=0)
        trust = spread / (spread + noise)
        return trust, plain - (1 - trust) * mean

    def sharers(self, own: Tensor, best: Tensor) -> Tensor:
        """A backbone that nobody installs serves nobody and never will: let some share it whose evidence is for it."""
        first = self.rules.parts.takes[:, 0]
        alone = ~first[best]
        lack = max(0, math.ceil(SHARERS * len(best)) - int((~alone).sum()))
        for_it = own[:, first].max(1).values - own[:, ~first].max(1).values
        chosen = torch.zeros_like(alone)
        chosen[
            for_it.masked_fill(~alone, -math.inf).argsort(descending=True, stable=True)[:lack]
        ] = True
        return chosen & (for_it > 0)

    def plain(self, server: Server, ids: Tensor) -> Tensor:
        """``[K, parts]``: the value of parts that score alike."""
        return self.rules.lean - self.rules.price * self.rules.parts.costs(
            server.task, server.params, ids
        )

    def noise(self, server: Server, ids: Tensor) -> Tensor:
        """``[K, 1]``: variance of a difference of two scores on a client's validation rows."""
        return NOISE / server.task.num_rows(ids, "val").to(DTYPE).clamp(min=1)[:, None]

    def visible(self, server: Server, memory: State, ids: Tensor, now: Tensor) -> Tensor:
        """``[K, seen]``: one, the features, the time since the last probe, and the scores held."""
        since = (server.round - memory["probed"][ids]).to(DTYPE)[:, None] / self.rules.probe_every
        features = dqn.standardise(memory["agent"], now).clamp(-3, 3)
        return torch.cat([torch.ones_like(since), features, since, memory["scores"][ids]], 1)

    def predicted(self, known: State, memory: State, ids: Tensor, seen: Tensor) -> Tensor:
        ridge = RIDGE * torch.eye(self.seen, dtype=DTYPE)
        change = (seen @ torch.linalg.solve(memory["gram"] + ridge, memory["cross"])).clamp(
            -MOST, MOST
        )
        stale = memory["probed"][ids] < known["round"][ids]
        scores: Tensor = memory["scores"][ids]
        return scores + torch.where(stale[:, None], change, 0.0)

    def told(self, known: State, memory: State, ids: Tensor) -> tuple[Tensor, Tensor]:
        return memory["asked"][ids], memory["action"][ids]

    def learn(
        self, server: Server, known: State, memory: State, ids: Tensor, metrics: Params
    ) -> State:
        asked = memory["asked"][ids]
        memory = self.remembered(known, memory, ids[asked])
        chose, scores = memory["chose"][ids], metrics["scores"]
        again = asked & (memory["probed"][ids] > 0)
        seen, held = memory["seen"][ids][again], memory["scores"][ids][again]
        if len(held):  # what the prediction is worth: its error beside that of the last probe
            server.logged["error_of_last"] = (scores[again] - held).abs().mean()
            server.logged["error_of_foreseen"] = (
                (scores[again] - memory["foreseen"][ids][again]).abs().mean()
            )
        confirmed = chose & (known["part"][ids] == known["offered"][ids])
        longer = torch.where(
            confirmed, (2 * memory["pause"][ids]).clamp(max=self.rules.probe_every), FIRST_PAUSE
        )
        new = {
            "scores": scores,
            "probed": torch.full_like(ids, server.round),
            "pause": longer,
            "state": memory["now"][ids],
            "base": memory["worth"][ids],
            "action": known["part"][ids],
            "open": torch.ones_like(asked),
        }
        return {
            **memory,
            **{
                name: memory[name].index_copy(0, ids[asked], rows[asked])
                for name, rows in new.items()
            },
            "gram": FORGET * memory["gram"] + seen.T @ seen,
            "cross": FORGET * memory["cross"] + seen.T @ (scores[again] - held),
        }

    def remembered(self, known: State, memory: State, ids: Tensor) -> State:
        """A probe tells what came of the choice at the one before."""
        who = ids[memory["open"][ids]]
        if not len(who):
            return memory
        part, state = memory["action"][who], memory["state"][who]
        rows = {
            "state": state,
            "action": part,
            "reward": known["reward"][who],
            "base": memory["base"][who, part],
            "next": state,
            "discount": torch.zeros(len(who), dtype=DTYPE),
            "round": memory["probed"][who],
        }
        return {**memory, "agent": add_to_buffer(memory["agent"], rows)}
