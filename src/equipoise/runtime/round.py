"""The round: decisions 0 to 5 in order, four named evaluations, bytes; and the state that carries to the next."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equipoise.contract import Down, Held, Method, Server, State, Task, Training, Tree
from equipoise.core import trees
from equipoise.core.errors import UsageError
from equipoise.data.federation import Ints
from equipoise.runtime import cost
from equipoise.runtime.choose import EXECUTORS, MakeExecutor
from equipoise.runtime.executors import Replies
from equipoise.runtime.store import ClientStore

NAMED = ("received", "trained", "personal")
LISTED = 1000  # cohorts up to this size have per-client decisions in the log

RoundLog = dict[str, Any]
"""One JSON object a round; see :meth:`Federation.round`."""


class Ledger(Protocol):
    """Whoever counts what a method costs under differential privacy."""

    def after(self, asked: Ints, replies: int) -> Any:
        """What has been spent after a round that asked these clients and used so many replies, ready for JSON."""

    def state(self) -> State:
        """For a checkpoint."""

    def load(self, state: State) -> None:
        """The inverse of :meth:`state`."""


@dataclass(frozen=True)
class Schedule:
    """What a run asks of the rounds."""

    rounds: int
    seed: int
    participation: float
    executor: str
    eval_every: int
    keep_models: bool


class Simulation:
    """A federation as its server sees it; the executor is where clients are. All that changes is in :meth:`state`."""

    def __init__(
        self,
        method: Method,
        task: Task,
        training: Training,
        schedule: Schedule,
        make_executor: MakeExecutor | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """``make_executor`` takes the place of the schedule's executor: clients that are elsewhere.

        ``ledger``: what counts the cost of a method under differential privacy.
        """
        self.method, self.task, self.training, self.schedule = method, task, training, schedule
        self.ledger = ledger
        make = make_executor or EXECUTORS[schedule.executor]
        self.executor = make(method, task, training, schedule.seed, schedule.rounds)
        self.done = 0
        self.initial = task.init_params(schedule.seed)
        self.params = self.initial
        with torch.no_grad():
            self.server_state = method.server_init(task, self.params)
        self.keeps_local = method.keeps_model or schedule.keep_models or not method.has_global(task)
        self.store = ClientStore(task.clients, self._fresh)

    def round(self) -> RoundLog:
        """One round; gives its log.

        ``global, received, trained, personal``: test scores of the four named evaluations (absent in rounds without
        evaluation; ``global`` is null where the server holds no whole model). Clients' scores are over all clients
        seen so far: one that was absent counts with the model it holds. ``val``: the same on validation data.
        ``ids``: who replied, where it is not everybody; lists under ``decisions`` and ``notes`` are in this order.
        ``dropped``: clients whose update, state or personal model was not finite; ``absent``: who did not reply, and
        why; ``skipped``: why the round changed nothing; ``privacy``: epsilon so far, under differential privacy.
        """
        started = time.perf_counter()
        s, method, task = self.schedule, self.method, self.task
        t = self.done + 1
        last = t == s.rounds
        evaluating = last or t % s.eval_every == 0
        splits = tuple(split for split in ("test", "val") if task.has(split)) if evaluating else ()

        server = Server(task, self.training, self.params, self.server_state, s.seed, t, s.rounds, s.participation)
        with torch.no_grad():
            tensor_ids, server.state = method.select(server)
            ids = _cohort(tensor_ids, task.clients, method)
            down, server.state = method.give(server, tensor_ids)
            replies = self.executor.run(t, tensor_ids, down, self.store.held(ids), splits)
            reply, here, asked = replies.stack, ids[replies.rows.numpy()], tensor_ids[replies.rows]
            finite = _finite(reply and (reply.up, reply.held), len(here))
            enough = int(finite.sum()) >= self.executor.fewest
            taken = finite & enough
            spent = self._bill(ids, replies, down)
            if reply is not None:
                held = reply.held if self.keeps_local else replace(reply.held, local={})
                self.store.keep(
                    here, held, reply.scores, taken
                )  # a client whose update was of no use keeps what it held
                if enough:
                    up = reply.up if bool(taken.all()) else trees.row(reply.up, taken)
                    weights, server.state = method.weigh(server, asked[taken], up)
                    self.params, server.state = method.aggregate(server, asked[taken], up, weights)
                    server.params = self.params
        self.server_state, self.done = server.state, t

        log: RoundLog = {"round": t, "clients": len(ids), "seen": int((self.store.counts["rounds"] > 0).sum())}
        if evaluating:
            log |= self._scores(splits)
        train = {} if reply is None else trees.plain(reply.train) or {}
        log["train"] = {name: _spread(value) for name, value in train.items()}
        if len(here) < min(task.clients, LISTED + 1):  # lists of a cohort say nothing without its ids
            log["ids"] = here.tolist()
        if len(here) <= LISTED and any(value["min"] != value["max"] for value in log["train"].values()):
            log["decisions"] = {name: _plain(value) for name, value in train.items()}
        log["bytes"] = {way: int(spent[way].sum()) for way in ("up", "down")}
        log["dropped"] = here[~finite.numpy()].tolist()
        if replies.absent:
            log["absent"] = {str(client): reason for client, reason in replies.absent.items()}
        if not enough and self.executor.fewest > 1:
            log["skipped"] = f"{int(finite.sum())} usable replies, {self.executor.fewest} are needed"
        if self.ledger is not None:
            sent = np.array([client not in replies.unsent for client in ids.tolist()], bool)
            log["privacy"] = self.ledger.after(ids[sent], int(taken.sum()))
        notes = {**(reply.notes if reply else {}), **server.notes}
        if notes:
            log["notes"] = {name: _note(value) for name, value in notes.items()}
        stop = method.stop(server)
        if stop:
            log["stop"] = stop
        log["seconds"] = time.perf_counter() - started
        return log

    def state(self) -> State:
        """Everything that the next round depends on."""
        state = {"params": self.params, "server": self.server_state, "store": self.store.saved()}
        return state if self.ledger is None else state | {"privacy": self.ledger.state()}

    def load(self, state: State, done: int) -> None:
        self.params, self.server_state, self.done = state["params"], state["server"], done
        self.store.load(state["store"])
        if self.ledger is not None:
            self.ledger.load(state["privacy"])

    def personal_models(self) -> tuple[Ints, Tree]:
        """Clients seen and the stack of their personal models."""
        models = self.store.personal
        if not models:
            return self.store.ids, self.store.local
        # A client that has not made one yet (all its updates were dropped) would use the global model.
        unknown = ~_finite(models, len(self.store.ids))
        return self.store.ids, {
            name: torch.where(unknown.view(-1, *[1] * (value.dim() - 1)), self.params[name], value)
            for name, value in models.items()
        }

    def _fresh(self, ids: Tensor) -> Held:
        return self.executor.fresh(ids, self.initial, self.keeps_local)

    def _bill(self, ids: Ints, replies: Replies, down: Down) -> Tree:
        """Per client that was asked: whether it replied, and its bytes, paid whether or not the update was of use."""
        replied = torch.zeros(len(ids), dtype=torch.int64)
        replied[replies.rows] = 1
        sent = cost.down_bytes(down, self.task.blocks, len(ids))
        if replies.unsent:
            sent *= torch.tensor([int(client) not in replies.unsent for client in ids])
        size = trees.tree_bytes(replies.stack.up, stacked=True) if replies.stack else 0
        spent = {"rounds": replied, "up": size * replied, "down": sent}
        self.store.count(ids, spent)
        return spent

    def _scores(self, splits: tuple[str, ...]) -> RoundLog:
        scores, log = self.store.scores, RoundLog()
        whole = self.method.has_global(self.task)
        one = {name: value.unsqueeze(0) for name, value in self.params.items()}
        for split in splits:
            named: RoundLog = {"global": None}
            if whole:
                with torch.no_grad():
                    values = self.task.evaluate_server(one, "test" if split == "test" else "public")
                named["global"] = {name: _number(value[0]) for name, value in values.items()}
            for name in NAMED if scores else ():
                if name not in scores[split]:  # the personal model is the trained one
                    named[name] = named["trained"]
                    continue
                values = scores[split][name]
                named[name] = {metric: _number(value.double().nanmean()) for metric, value in values.items()}
                head = values[self.task.headline].double()
                head = head[torch.isfinite(head)]
                named[name]["std"] = _number(head.std(correction=0)) if len(head) else None
                named[name]["p10"] = float(np.quantile(head.numpy(), 0.1)) if len(head) else None
            if split == "test":
                log |= named
            else:
                log["val"] = named
        return log


def _cohort(ids: Tensor, clients: int, method: Method) -> Ints:
    """Decision 0 as an array; a method of one's own may get it wrong."""
    array: Ints = ids.numpy()
    if (
        ids.dtype != torch.int64
        or not len(array)
        or (np.diff(array) <= 0).any()
        or array[0] < 0
        or array[-1] >= clients
    ):
        raise UsageError(
            f"{method.name}.select must give the clients of the round as whole numbers from 0 to {clients - 1}, "
            f"ascending, each once, and at least one: it gave {ids.dtype} {array[:10].tolist()}"
        )
    return array


def _finite(tree: Any, clients: int) -> Tensor:
    """Per client: whether every number is finite. A sum is finite only if all of its terms are: one pass decides."""
    fine = torch.ones(clients, dtype=torch.bool)
    seen: set[int] = set()  # what is uploaded is often also what is held
    for value in pytree.tree_leaves(tree):
        if value.is_floating_point() and value.data_ptr() not in seen:
            seen.add(value.data_ptr())
            rows = value.reshape(clients, -1)
            whole = torch.isfinite(rows.sum(1))
            fine &= whole if bool(whole.all()) else torch.isfinite(rows).all(1)
    return fine


def _number(value: Tensor) -> float | None:
    """A plain number for JSON, which has no NaN or infinity."""
    number = float(value)
    return number if math.isfinite(number) else None


def _spread(value: Tensor) -> dict[str, float]:
    value = value.double()
    return {"mean": float(value.mean()), "min": float(value.min()), "max": float(value.max())}


def _plain(value: Tensor) -> list[float]:
    return [float(f"{number:.6g}") for number in value.tolist()]


def _note(value: Any) -> Any:
    """A number as it is; one number a client as a list, or as its spread when there are many."""
    if not isinstance(value, Tensor):
        return value
    if value.dim() == 0:
        return _number(value)
    return _plain(value) if len(value) <= LISTED else _spread(value)
