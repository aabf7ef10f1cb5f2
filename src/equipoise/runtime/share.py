"""A process's share of the clients of a round: what it computes, keeps and sums when it is told to."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from equipoise.contract import ServerMessage, ClientState, ClientResult, State, Params, ClientUpdate
from equipoise.core import trees
from equipoise.core.errors import UsageError
from equipoise.runtime import chunks
from equipoise.runtime.adopt import UpdateDiagnostics
from equipoise.runtime.executors import InProcessExecutor, evaluate_on_server
from equipoise.runtime.group import ProcessGroup, WorkerLost
from equipoise.runtime.rows import MemoryBudget
from equipoise.runtime.store import HELD, ClientStore, keeps_local


class Worker:
    """What one process does of a run. The same code serves the leader's own share and everybody else's."""

    def __init__(self, inner: InProcessExecutor, group: ProcessGroup, keep_models: bool, room: MemoryBudget | None = None) -> None:
        self.inner, self.group = inner, group
        initial = inner.task.init_params(inner.seed)
        self.keeps_local = keeps_local(inner.method, inner.task, keep_models)
        self.store = ClientStore(inner.task.num_clients, lambda ids: inner.init_state(ids, initial, self.keeps_local), room)
        self._parts: list[ClientResult] = []
        self._ids = np.empty(0, np.int64)
        self._sent: Params = {}
        self._method = inner.method

    def answer(self, call: State) -> State:
        """Do what one message asks; gives the message to send back."""
        calls: dict[str, Callable[[State], State]] = {
            **{"run": self.run, "sums": self.sums, "settle": self.settle, "rows": self.rows, "judge": self.judge}
        }
        with torch.no_grad():
            return calls[call["do"]](call)

    def run(self, call: State) -> State:
        """Get what others hold of these clients, compute their chunks; uploads stay here if only sums are needed.

        Where ``weights`` are known before, the sums over all of them go with the answer.
        """
        self._exchange(call["moves"])
        ids, down, round = call["ids"], trees.from_dict(ServerMessage, call["down"]), call["round"]
        self._method = self.inner.method.at(round, self.inner.rounds)
        self._ids, self._sent, self._parts = ids.numpy(), down.params, []
        if not len(ids):
            return {"replies": {}, "facts": {}, "bytes": 0, "seconds": 0.0}
        held = self.store.held(self._ids)
        self.store.prefetch(call["next"].numpy())
        facts: list[UpdateDiagnostics] = []
        started = time.perf_counter()
        for first, last in call["cuts"]:
            here = chunks.chunk_index(slice(first, last))
            part = self.inner.run_chunk(round, ids[here], down.for_clients(here), trees.index(held, here), tuple(call["splits"]))
            facts.append(UpdateDiagnostics.of(self._method, down.params, part))
            self._parts.append(part)
        seconds = time.perf_counter() - started
        size = trees.tree_bytes(self._parts[0].update, stacked=True)
        told = [replace(part, client_state=ClientState(), update=self._told(part.update)) for part in self._parts]
        whole = UpdateDiagnostics.joined(facts)
        why = {str(place): text for place, text in whole.violations.items()}
        known = {"finite": whole.is_finite, "long": whole.norms, "reasons": why}
        answer = {"replies": trees.to_dict(trees.concatenate(told)), "facts": known, "bytes": size, "seconds": seconds}
        if len(call["weights"]):
            answer |= self.sums({"taken": torch.ones(len(ids), dtype=torch.bool), "weights": call["weights"]})
        return answer

    def settle(self, call: State) -> State:
        """Keep what came of those whose reply counted."""
        if len(self._ids):
            held = trees.concatenate([part.client_state for part in self._parts])
            held = held if self.keeps_local else replace(held, local_params={})
            self.store.commit(self._ids, held, {}, call["taken"])
        return {}

    def sums(self, call: State) -> State:
        """The method's sums over each chunk."""
        taken, weights = call["taken"], call["weights"]
        found: dict[str, State | None] = {}
        first, used = 0, 0
        for number, part in enumerate(self._parts):
            clients = len(part.hparams.epochs) if part.hparams is not None else 0
            here = taken[first : first + clients]
            count = int(here.sum())
            mine = trees.index(weights, slice(used, used + count))
            found[str(number)] = chunks.sum_chunk(self._method, self._sent, part.update, here, mine)
            first, used = first + clients, used + count
        return {"sums": found}

    def rows(self, call: State) -> State:
        """What is held of these clients under the names that are asked for."""
        return self.store.rows(call["ids"].numpy(), call["names"])

    def judge(self, call: State) -> State:
        """The server's model on its own sets."""
        return evaluate_on_server(self.inner.task, call["params"], tuple(call["splits"]))

    def put(self, ids: Tensor, held: State) -> None:
        if len(ids):
            self.store.write(ids.numpy(), held)

    def _told(self, updates: ClientUpdate) -> ClientUpdate:
        return ClientUpdate({}, metrics=updates.metrics) if self._method.aggregates_by_sum else updates

    def _exchange(self, moves: State) -> None:
        """Clients whose state lies with another process than the one that is to compute them."""
        outgoing = {
            int(to): self.group.send(int(to), self.store.rows(ids.numpy(), HELD), crossing=True)
            for to, ids in moves["out"].items()
        }
        for sender, ids in moves["in"].items():
            self.put(ids, self.group.receive(int(sender), crossing=True))
        for to, under_way in outgoing.items():
            self.group.sent(under_way, to)


def serve(share: Worker, group: ProcessGroup) -> None:
    """The life of a process that does not lead: one message after another until the last.

    Nobody waits for an answer where clients settle: what went wrong there is the next one.
    """
    wrong: State = {}
    while (call := group.receive(0))["do"] != "end":
        answer = wrong or _tried(share, call)
        if call["do"] == "settle":
            wrong = answer
        else:
            group.sent(group.send(0, answer), 0)


def _tried(share: Worker, call: State) -> State:
    try:
        return share.answer(call)
    except UsageError as error:
        return {"refused": str(error)}
    except WorkerLost as error:  # the leader ends the run, and says who it was
        return {"lost": str(error)}
    except Exception:
        return {"failed": traceback.format_exc()}
