"""A round in this process of which no more is kept than is still needed: one chunk's models and not the cohort's.

Where nothing is uploaded, nobody's reply bears on another's, and what is sound is kept at once. Where the weights are
known before, a chunk's uploads are summed at once; should a reply be left out, the round is computed once more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from equipoise.contract import ServerMessage, ClientState, Method, ClientResult, State, Params, ClientUpdate
from equipoise.core import trees
from equipoise.runtime import chunks
from equipoise.runtime.adopt import UpdateDiagnostics
from equipoise.runtime.executors import InProcessExecutor, CohortResults
from equipoise.runtime.store import ClientStore


class ChunkedRound:
    """How a simulation without a clock asks an executor of its own process: every sound reply counts."""

    def __init__(self, executor: InProcessExecutor, store: ClientStore, keeps_local: bool) -> None:
        self.executor, self.store, self.keeps_local = executor, store, keeps_local
        self._sums_early = not keeps_local

    def run(self, round: int, ids: Tensor, message: ServerMessage, splits: tuple[str, ...]) -> CohortResults:
        """As the executor's own, of what the store has of these clients."""
        executor = self.executor
        method, cuts = executor.method.at(round, executor.rounds), executor.chunks(len(ids))
        weights = executor.known_weights(method, ids) if self._sums_early else torch.empty(0)
        settles = not (method.shared_param_names(executor.task) or method.report_ranges or "upload" in method.overridden_hooks)
        if len(cuts) == 1 or not (settles or len(weights)):
            return self._whole(round, ids, message, splits)
        facts: list[UpdateDiagnostics] = []
        sums: list[State | None] = []
        size = 0

        def told(cut: slice) -> ClientResult:
            """The replies of a chunk without what is not needed any more, which ends with this call."""
            nonlocal size
            here, own = chunks.chunk_index(cut), ids[cut].numpy()
            part = executor.run_chunk(round, ids[here], message.for_clients(here), self.store.held(own), splits)
            facts.append(UpdateDiagnostics.of(method, message.params, part))
            size = trees.tree_bytes(part.update, stacked=True)
            if settles:
                self.store.commit(own, part.client_state, part.scores, facts[-1].is_finite)
                return replace(part, client_state=ClientState(), scores={})
            everybody = torch.ones(len(own), dtype=torch.bool)
            sums.append(chunks.sum_chunk(method, message.params, part.update, everybody, weights[cut]))
            return replace(part, update=ClientUpdate({}, metrics=part.update.metrics), client_state=replace(part.client_state, local_params={}))

        with torch.no_grad():
            stack = trees.concat_stream((told(cut) for cut in cuts), len(ids))
        known = UpdateDiagnostics.joined(facts)
        if settles:
            return CohortResults(torch.arange(len(ids)), stack, known=known, committed=True)

        def again() -> ClientUpdate:
            self._sums_early = False  # whoever was left out once may be so in every round
            stack = self._whole(round, ids, message, ()).stack
            assert stack is not None
            return stack.update

        return _Summed(torch.arange(len(ids)), stack, known=known, size=size, early=sums, weights=weights, again=again)

    def _whole(self, round: int, ids: Tensor, message: ServerMessage, splits: tuple[str, ...]) -> CohortResults:
        return self.executor.run_clients(round, ids, message, self.store.held(ids.numpy()), splits)


@dataclass
class _Summed(CohortResults):
    """Replies whose uploads are gone."""

    early: list[State | None] = field(default_factory=list)
    """The sums of each chunk over all its clients, by the :attr:`weights`."""
    again: Callable[[], ClientUpdate] = lambda: ClientUpdate({})
    """Computes the uploads once more."""
    _whole: bool = False

    def partial_sums(self, method: Method, global_params: Params, cuts: list[slice], taken: Tensor, weights: Tensor | Params) -> State:
        if self.foreseen(taken, weights):
            return chunks.add_chunk_sums(self.early)
        if not self._whole:
            assert self.stack is not None
            self.stack, self._whole = replace(self.stack, update=self.again()), True
        return super().partial_sums(method, global_params, cuts, taken, weights)
