"""A round in this process of which no more is kept than is still needed: one chunk's models and not the cohort's.

Where nothing is uploaded, nobody's reply bears on another's, and what is sound is kept at once. Where the weights are
known before, a chunk's uploads are summed at once; should a reply be left out, the round is computed once more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from equipoise.contract import Down, Held, Method, Reply, State, Tree, Up
from equipoise.core import trees
from equipoise.runtime import chunks
from equipoise.runtime.adopt import Facts
from equipoise.runtime.executors import Local, Replies
from equipoise.runtime.store import ClientStore


class Stream:
    """How a simulation without a clock asks an executor of its own process: every sound reply counts."""

    def __init__(self, executor: Local, store: ClientStore, keeps_local: bool) -> None:
        self.executor, self.store, self.keeps_local = executor, store, keeps_local
        self._sums_early = not keeps_local

    def run(self, round: int, ids: Tensor, down: Down, splits: tuple[str, ...]) -> Replies:
        """As the executor's own, of what the store has of these clients."""
        executor = self.executor
        method, cuts = executor.method.at(round, executor.rounds), executor.cuts(len(ids))
        weights = executor.foreseen(method, ids) if self._sums_early else torch.empty(0)
        settles = not (method.shared_names(executor.task) or method.reports or "upload" in method.decides)
        if len(cuts) == 1 or not (settles or len(weights)):
            return self._whole(round, ids, down, splits)
        facts: list[Facts] = []
        sums: list[State | None] = []
        size = 0

        def told(cut: slice) -> Reply:
            """The replies of a chunk without what is not needed any more, which ends with this call."""
            nonlocal size
            here, own = chunks.rows(cut), ids[cut].numpy()
            part = executor.chunk(round, ids[here], down.row(here), self.store.held(own), splits)
            facts.append(Facts.of(method, down.params, part))
            size = trees.tree_bytes(part.up, stacked=True)
            if settles:
                self.store.keep(own, part.held, part.scores, facts[-1].finite)
                return replace(part, held=Held(), scores={})
            everybody = torch.ones(len(own), dtype=torch.bool)
            sums.append(chunks.summed(method, down.params, part.up, everybody, weights[cut]))
            return replace(part, up=Up({}, metrics=part.up.metrics), held=replace(part.held, local={}))

        with torch.no_grad():
            stack = trees.gathered((told(cut) for cut in cuts), len(ids))
        known = Facts.joined(facts)
        if settles:
            return Replies(torch.arange(len(ids)), stack, known=known, kept=True)

        def again() -> Up:
            self._sums_early = False  # whoever was left out once may be so in every round
            stack = self._whole(round, ids, down, ()).stack
            assert stack is not None
            return stack.up

        return _Summed(torch.arange(len(ids)), stack, known=known, size=size, early=sums, weights=weights, again=again)

    def _whole(self, round: int, ids: Tensor, down: Down, splits: tuple[str, ...]) -> Replies:
        return self.executor.run(round, ids, down, self.store.held(ids.numpy()), splits)


@dataclass
class _Summed(Replies):
    """Replies whose uploads are gone."""

    early: list[State | None] = field(default_factory=list)
    """The sums of each chunk over all its clients, by the :attr:`weights`."""
    again: Callable[[], Up] = lambda: Up({})
    """Computes the uploads once more."""
    _whole: bool = False

    def sums(self, method: Method, sent: Tree, cuts: list[slice], taken: Tensor, weights: Tensor | Tree) -> State:
        if self.foreseen(taken, weights):
            return chunks.added(self.early)
        if not self._whole:
            assert self.stack is not None
            self.stack, self._whole = replace(self.stack, up=self.again()), True
        return super().sums(method, sent, cuts, taken, weights)
