"""A process's share of the clients of a round: what it computes, keeps and sums when it is told to."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from equipoise.contract import Down, Held, Reply, State, Tree, Up
from equipoise.core import trees
from equipoise.core.errors import UsageError
from equipoise.runtime import chunks
from equipoise.runtime.adopt import Facts
from equipoise.runtime.executors import Local, judged
from equipoise.runtime.group import Group, Lost
from equipoise.runtime.rows import Room
from equipoise.runtime.store import HELD, ClientStore, keeps_local


class Share:
    """What one process does of a run. The same code serves the leader's own share and everybody else's."""

    def __init__(self, inner: Local, group: Group, keep_models: bool, room: Room | None = None) -> None:
        self.inner, self.group = inner, group
        initial = inner.task.init_params(inner.seed)
        self.keeps_local = keeps_local(inner.method, inner.task, keep_models)
        self.store = ClientStore(inner.task.clients, lambda ids: inner.fresh(ids, initial, self.keeps_local), room)
        self._parts: list[Reply] = []
        self._ids = np.empty(0, np.int64)
        self._sent: Tree = {}
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
        ids, down, round = call["ids"], trees.revive(Down, call["down"]), call["round"]
        self._method = self.inner.method.at(round, self.inner.rounds)
        self._ids, self._sent, self._parts = ids.numpy(), down.params, []
        if not len(ids):
            return {"replies": {}, "facts": {}, "bytes": 0, "seconds": 0.0}
        held = self.store.held(self._ids)
        self.store.expect(call["next"].numpy())
        facts: list[Facts] = []
        started = time.perf_counter()
        for first, last in call["cuts"]:
            here = chunks.rows(slice(first, last))
            part = self.inner.chunk(round, ids[here], down.row(here), trees.row(held, here), tuple(call["splits"]))
            facts.append(Facts.of(self._method, down.params, part))
            self._parts.append(part)
        seconds = time.perf_counter() - started
        size = trees.tree_bytes(self._parts[0].up, stacked=True)
        told = [replace(part, held=Held(), up=self._told(part.up)) for part in self._parts]
        whole = Facts.joined(facts)
        why = {str(place): text for place, text in whole.reasons.items()}
        known = {"finite": whole.finite, "long": whole.long, "reasons": why}
        answer = {"replies": trees.plain(trees.concatenate(told)), "facts": known, "bytes": size, "seconds": seconds}
        if len(call["weights"]):
            answer |= self.sums({"taken": torch.ones(len(ids), dtype=torch.bool), "weights": call["weights"]})
        return answer

    def settle(self, call: State) -> State:
        """Keep what came of those whose reply counted."""
        if len(self._ids):
            held = trees.concatenate([part.held for part in self._parts])
            held = held if self.keeps_local else replace(held, local={})
            self.store.keep(self._ids, held, {}, call["taken"])
        return {}

    def sums(self, call: State) -> State:
        """The method's sums over each chunk."""
        taken, weights = call["taken"], call["weights"]
        found: dict[str, State | None] = {}
        first, used = 0, 0
        for number, part in enumerate(self._parts):
            clients = len(part.train.epochs) if part.train is not None else 0
            here = taken[first : first + clients]
            count = int(here.sum())
            mine = trees.row(weights, slice(used, used + count))
            found[str(number)] = chunks.summed(self._method, self._sent, part.up, here, mine)
            first, used = first + clients, used + count
        return {"sums": found}

    def rows(self, call: State) -> State:
        """What is held of these clients under the names that are asked for."""
        return self.store.rows(call["ids"].numpy(), call["names"])

    def judge(self, call: State) -> State:
        """The server's model on its own sets."""
        return judged(self.inner.task, call["params"], tuple(call["splits"]))

    def put(self, ids: Tensor, held: State) -> None:
        if len(ids):
            self.store.put(ids.numpy(), held)

    def _told(self, up: Up) -> Up:
        return Up({}, metrics=up.metrics) if self._method.summed else up

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


def serve(share: Share, group: Group) -> None:
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


def _tried(share: Share, call: State) -> State:
    try:
        return share.answer(call)
    except UsageError as error:
        return {"refused": str(error)}
    except Lost as error:  # the leader ends the run, and says who it was
        return {"lost": str(error)}
    except Exception:
        return {"failed": traceback.format_exc()}
