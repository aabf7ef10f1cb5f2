"""The policy ``learned``: probes where they cost nothing, their prediction in between, and a small residual."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.contract import Server, State, Tree
from equipoise.control import dqn, probes, record
from equipoise.control.learning import DTYPE
from equipoise.control.parts import PARTS, TAKES
from equipoise.control.policies import DRAWS, FULL, FULL_ROUNDS, Dqn, Offer, draws

RESIDUAL = 10.0  # the residual pays this for its square: one round's reward is nearly all noise
EPSILON, CALM = 0.1, 0.15  # exploration of the runner-up, none in this last share of the rounds
CLOSE = 0.03  # a runner-up further behind is not explored: installing the wrong part destroys what a client has learned
RIDGE, FORGET = 20.0, 0.98  # of the prediction: penalty, and what is kept of its evidence each round
MOST = 0.2  # a score is never predicted to have changed by more
SEEN = 1 + record.FEATURES + 1 + len(PARTS)


class Learned(Dqn):
    """Value of a part = worth of its predicted score + residual. A client that is sent everything chooses itself.

    All that was sent is probed. Blocks beyond the choice are sent for a probe alone, less and less often (1, 2, 4, ..
    up to ``probe_every`` rounds apart) while probes confirm the choice. In between, the scores of parts that were not
    tried are predicted: their change since they were, by ridge regression on features that cost nothing. If another
    part is foreseen to be better, the client is sent everything and looks before it changes.
    """

    probes = True

    @property
    def config(self) -> dqn.Config:
        return dqn.Config(record.FEATURES, len(PARTS), gamma=0.0, residual=RESIDUAL, steps=4)

    def init(self, clients: int) -> State:
        return super().init(clients) | {
            "scores": torch.zeros(clients, len(PARTS), dtype=DTYPE),
            "scored": torch.zeros(clients, len(PARTS), dtype=torch.int64),
            "sent": torch.zeros(clients, 2, dtype=torch.bool),
            "probed": torch.zeros(clients, dtype=torch.int64),
            "pause": torch.ones(clients, dtype=torch.int64),
            "seen": torch.zeros(clients, SEEN, dtype=DTYPE),
            "foreseen": torch.zeros(clients, len(PARTS), dtype=DTYPE),
            "stale": torch.zeros(clients, len(PARTS), dtype=torch.bool),
            "gram": torch.zeros(SEEN, SEEN, dtype=DTYPE),
            "cross": torch.zeros(SEEN, len(PARTS), dtype=DTYPE),
        }

    def offer(self, s: Server, known: State, memory: State, ids: Tensor, whole: bool) -> tuple[Offer, State]:
        memory = self.experience(s, known, memory, ids)
        seen = self.visible(s, memory, ids)
        stale = memory["scored"][ids] < known["round"][ids][:, None]
        foreseen = self.predicted(memory, ids, seen, stale)
        value = probes.worth(foreseen, s.task.rows(ids, "val"), self.rules.bonus)
        residual = dqn.values(self.config, memory["agent"], memory["state"][ids])
        total = (value + residual).masked_fill(~self.rules.mask, -math.inf)
        ranked = total.sort(dim=1, descending=True, stable=True)
        left = max(0.0, 1.0 - s.round / ((1.0 - CALM) * s.rounds))
        exploring = draws(s, ids, 1, DRAWS)[:, 0] < EPSILON * left
        exploring &= ranked.values[:, 0] - ranked.values[:, 1] < CLOSE
        part = torch.where(exploring, ranked.indices[:, 1], ranked.indices[:, 0])
        late = s.round - memory["probed"][ids] >= memory["pause"][ids]
        due = (late | (part != known["part"][ids])) & ~exploring  # a change is foreseen: look before it is made
        starting = (known["round"][ids] == 0) | (s.round <= FULL_ROUNDS)
        part = torch.where(starting, FULL, part)
        takes = TAKES[part] | due[:, None] | whole
        choose = takes.all(1) & ~starting & ~exploring
        s.notes["probes"] = int((takes & ~TAKES[part]).any(1).sum())
        base = value - value[:, self.rules.mask].mean(1, keepdim=True)
        new = {"seen": seen, "foreseen": foreseen, "stale": stale, "base": base, "sent": takes}
        memory = {**memory, **{name: memory[name].index_copy(0, ids, rows) for name, rows in new.items()}}
        return Offer(part, takes, choose, residual.float()), memory

    def visible(self, s: Server, memory: State, ids: Tensor) -> Tensor:
        """``[K, SEEN]``: one, the features, the time since the last whole probe, and the scores held."""
        scores = memory["scores"][ids]
        since = (s.round - memory["probed"][ids]).to(DTYPE) / self.rules.probe_every
        features = dqn.standardise(memory["agent"], memory["state"][ids]).clamp(-3, 3)
        return torch.cat([torch.ones_like(since)[:, None], features, since[:, None], scores], 1)

    def predicted(self, memory: State, ids: Tensor, seen: Tensor, stale: Tensor) -> Tensor:
        ridge = RIDGE * torch.eye(SEEN, dtype=DTYPE)
        change = (seen @ torch.linalg.solve(memory["gram"] + ridge, memory["cross"])).clamp(-MOST, MOST)
        scores: Tensor = memory["scores"][ids]
        return scores + torch.where(stale, change, torch.zeros_like(change))

    def learn(self, s: Server, known: State, memory: State, ids: Tensor, metrics: Tree) -> State:
        memory = super().learn(s, known, memory, ids, metrics)
        sent, held, told = memory["sent"][ids], memory["scores"][ids], metrics["scores"]
        tried = (~TAKES[None] | sent[:, None]).all(2)
        whole, before = sent.all(1), memory["probed"][ids] > 0
        seen = memory["seen"][ids][whole & before]
        stale = memory["stale"][ids] & (whole & before)[:, None]
        if bool(stale.any()):  # what the prediction is worth: its error beside that of the last probe
            s.notes["error_of_last"] = (told - held)[stale].abs().mean()
            s.notes["error_of_foreseen"] = (told - memory["foreseen"][ids])[stale].abs().mean()
        now = torch.full_like(ids, s.round)
        confirmed = known["part"][ids] == known["offered"][ids]
        longer = torch.where(confirmed, (2 * memory["pause"][ids]).clamp(max=self.rules.probe_every), 1)
        new = {
            "scores": torch.where(tried, told, held),
            "scored": torch.where(tried, now[:, None], memory["scored"][ids]),
            "probed": torch.where(whole, now, memory["probed"][ids]),
            "pause": torch.where(whole, longer, memory["pause"][ids]),
        }
        return {
            **memory,
            **{name: memory[name].index_copy(0, ids, rows) for name, rows in new.items()},
            "gram": FORGET * memory["gram"] + seen.T @ seen,
            "cross": FORGET * memory["cross"] + seen.T @ (told - held)[whole & before],
        }
