"""The policy ``learned``: sparse probes, predicted in between, evidence pooled over clients, and a small residual."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from equipoise.contract import Server, State, Params
from equipoise.core import streams
from equipoise.learners import dqn
from equipoise.learners.learning import DTYPE, remember
from equipoise.methods.fedpolicy import probes, record
from equipoise.methods.fedpolicy.policies import FULL, FULL_ROUNDS, Dqn, Offer, draws

RESIDUAL = 10.0  # the residual pays this for its square: one round's reward is nearly all noise
EPSILON, CALM = 0.1, 0.15  # exploration of the runner-up, none in this last share of the rounds
CLOSE = 0.03  # a runner-up further behind is not explored: installing the wrong part destroys what a client has learned
RIDGE, FORGET = 20.0, 0.98  # of the prediction: penalty, and what is kept of its evidence each round
MOST = 0.2  # a score is never predicted to have changed by more
NOISE = 0.1  # variance of the difference of two scores on one row: how often two models disagree on it
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

    def offer(self, server: Server, known: State, memory: State, ids: Tensor) -> tuple[Offer, State]:
        now = record.features(known, ids, self.rules.parts, server)
        memory = {**memory, "agent": self.studied(server, self.watched(server, known, memory["agent"], ids, now))}
        seen = self.visible(server, memory, ids, now)
        foreseen = self.predicted(known, memory, ids, seen)
        trust, lean = self.pooled(server, memory, ids)
        lean = lean + dqn.values(self.config, memory["agent"], now)
        value = probes.worth(foreseen, trust, lean).masked_fill(~self.rules.mask, -math.inf)
        ranked = value.sort(dim=1, descending=True, stable=True)
        starting = (known["round"][ids] == 0) | (server.round <= FULL_ROUNDS)
        left = max(0.0, 1.0 - server.round / ((1.0 - CALM) * server.num_rounds))
        best = torch.where(starting, FULL, ranked.indices[:, 0] if left else known["part"][ids])
        own = probes.worth(foreseen, torch.ones_like(trust), self.plain(server, ids))
        own = own.masked_fill(~self.rules.mask, -math.inf)
        sharing = self.sharers(own, best) & bool(left)
        best = torch.where(sharing, own.argmax(1), best)
        late = server.round - memory["probed"][ids] >= memory["pause"][ids]
        surprise = (best != known["part"][ids]) & (server.round - memory["probed"][ids] > 1)
        look = (late | surprise) & bool(left) & (server.round >= FULL_ROUNDS)
        free = look & ~starting & ~sharing
        exploring = free & (draws(server, ids, 1, streams.POLICY[0])[:, 0] < EPSILON * left)
        exploring &= ranked.values[:, 0] - ranked.values[:, 1] < CLOSE
        part = torch.where(exploring, ranked.indices[:, 1], best)
        choose = free & ~exploring
        server.logged["probes"] = int(look.sum())
        mean = value[:, self.rules.mask].mean(1, keepdim=True)
        base = torch.where(self.rules.mask, value - mean, 0.0)  # a state that is kept must be finite
        new = {"asked": look, "chose": choose, "foreseen": foreseen, "seen": seen, "now": now, "worth": base}
        memory = {**memory, **{name: memory[name].index_copy(0, ids, rows) for name, rows in new.items()}}
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
        chosen[for_it.masked_fill(~alone, -math.inf).argsort(descending=True, stable=True)[:lack]] = True
        return chosen & (for_it > 0)

    def plain(self, server: Server, ids: Tensor) -> Tensor:
        """``[K, parts]``: the value of parts that score alike."""
        return self.rules.lean - self.rules.price * self.rules.parts.costs(server.task, server.params, ids)

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
        change = (seen @ torch.linalg.solve(memory["gram"] + ridge, memory["cross"])).clamp(-MOST, MOST)
        stale = memory["probed"][ids] < known["round"][ids]
        scores: Tensor = memory["scores"][ids]
        return scores + torch.where(stale[:, None], change, 0.0)

    def told(self, known: State, memory: State, ids: Tensor) -> tuple[Tensor, Tensor]:
        return memory["asked"][ids], memory["action"][ids]

    def learn(self, server: Server, known: State, memory: State, ids: Tensor, metrics: Params) -> State:
        asked = memory["asked"][ids]
        memory = self.remembered(known, memory, ids[asked])
        chose, scores = memory["chose"][ids], metrics["scores"]
        again = asked & (memory["probed"][ids] > 0)
        seen, held = memory["seen"][ids][again], memory["scores"][ids][again]
        if len(held):  # what the prediction is worth: its error beside that of the last probe
            server.logged["error_of_last"] = (scores[again] - held).abs().mean()
            server.logged["error_of_foreseen"] = (scores[again] - memory["foreseen"][ids][again]).abs().mean()
        confirmed = chose & (known["part"][ids] == known["offered"][ids])
        longer = torch.where(confirmed, (2 * memory["pause"][ids]).clamp(max=self.rules.probe_every), FIRST_PAUSE)
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
            **{name: memory[name].index_copy(0, ids[asked], rows[asked]) for name, rows in new.items()},
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
        return {**memory, "agent": remember(memory["agent"], rows)}
