"""The round: decisions 0 to 5 in order, four named evaluations, bytes; and the state that carries to the next."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from equipoise.contract import Down, Held, Method, Server, State, Task, Training, Tree
from equipoise.core import schedules, trees
from equipoise.core.errors import UsageError
from equipoise.data.federation import Ints
from equipoise.records.rounds import Bytes, RoundRecord, Spent, Spread
from equipoise.records.scores import NOTHING, Evaluations, Scores
from equipoise.runtime import cost
from equipoise.runtime.adopt import Adopted, adopt, finite, too_long
from equipoise.runtime.choose import EXECUTORS, MakeExecutor
from equipoise.runtime.executors import Replies
from equipoise.runtime.store import ClientStore, keeps_local

LISTED = 1000  # cohorts up to this size have per-client decisions in the log


class Ledger(Protocol):
    """Whoever counts what a method costs under differential privacy."""

    def after(self, asked: Ints, replies: int) -> Spent:
        """What has been spent after a round that asked these clients and used so many replies."""

    def state(self) -> State:
        """For a checkpoint."""

    def load(self, state: State) -> None:
        """The inverse of :meth:`state`."""


@dataclass(frozen=True)
class Schedule:
    """What a run asks of the rounds."""

    rounds: int
    seed: int
    participation: float | schedules.Schedule
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
        self.keeps_local = keeps_local(method, task, schedule.keep_models)
        self.store = ClientStore(task.clients, self._fresh)

    def round(self) -> RoundRecord:
        """One round, from the choice of clients to the new model."""
        started = time.perf_counter()
        s, task = self.schedule, self.task
        t = self.done + 1
        method, training = self.method.at(t, s.rounds), self.training.at(t, s.rounds)
        participation = schedules.value_at(s.participation, t, s.rounds)
        last = t == s.rounds
        evaluating = last or t % s.eval_every == 0
        splits = tuple(split for split in ("test", "val") if task.has(split)) if evaluating else ()

        server = Server(task, training, self.params, self.server_state, s.seed, t, s.rounds, participation)
        with torch.no_grad():
            tensor_ids, server.state = method.select(server)
            ids = _cohort(tensor_ids, task.clients, method)
            down, server.state = method.give(server, tensor_ids)
            replies = self.executor.run(t, tensor_ids, down, self.store.held(ids), splits)
            reply, here, asked = replies.stack, ids[replies.rows.numpy()], tensor_ids[replies.rows]
            sound, left_out = torch.ones(len(here), dtype=torch.bool), dict[int, str]()
            if reply is not None:
                facts = replies.facts(method, down.params)
                sound, left_out = facts.finite, facts.reasons
                sound[list(left_out)] = False
                left_out |= too_long(facts.long, sound)
                sound[list(left_out)] = False
            outcome = Adopted(server, torch.zeros_like(sound))
            if reply is not None and int(sound.sum()) >= max(1, self.executor.fewest):
                sums = partial(replies.sums, method, down.params, self.executor.cuts(len(ids)))
                outcome = adopt(method, server, asked, reply.up, sound, self.executor.fewest, sums)
                server, left_out = outcome.server, left_out | outcome.blamed
            elif self.executor.fewest > 1:
                outcome.skipped = f"{int(sound.sum())} usable replies, {self.executor.fewest} are needed"
            sound[list(left_out)] = False
            spent = self._bill(ids, replies, down)
            replies.settle(outcome.rows)
            if reply is not None:  # a client whose update was of no use keeps what it held
                held = reply.held if self.keeps_local else replace(reply.held, local={})
                self.store.keep(here, held, reply.scores, outcome.rows)
        self.params, self.server_state, self.done = server.params, server.state, t

        stats: Tree = {} if reply is None else trees.plain(reply.train) or {}
        notes = {**(reply.notes if reply else {}), **server.notes}
        train = {name: _spread(value) for name, value in stats.items()}
        differ = any(value.min != value.max for value in train.values())
        return RoundRecord(
            round=t,
            clients=len(ids),
            seen=int((self.store.counts["rounds"] > 0).sum()),
            test=self._scores("test") if "test" in splits else None,
            val=self._scores("val") if "val" in splits else None,
            train=train,
            steps=None if reply is None or reply.steps is None else int(reply.steps.sum()),
            # Lists of a cohort say nothing without its ids.
            ids=here.tolist() if len(here) < min(task.clients, LISTED + 1) else None,
            decisions={n: _plain(v) for n, v in stats.items()} if differ and len(here) <= LISTED else None,
            bytes=Bytes(int(spent["up"].sum()), int(spent["down"].sum())),
            dropped=here[~sound.numpy()].tolist(),
            left_out={int(here[place]): reason for place, reason in sorted(left_out.items())},
            absent=replies.absent,
            skipped=outcome.skipped,
            privacy=self._privacy(ids, replies, int(outcome.rows.sum())),
            notes={name: _note(value) for name, value in notes.items()},
            stop=method.stop(server) or None,
            seconds=time.perf_counter() - started,
        )

    def state(self) -> State:
        """Everything that the next round depends on."""
        state = {"params": self.params, "server": self.server_state, "store": self._stored()}
        return state if self.ledger is None else state | {"privacy": self.ledger.state()}

    def load(self, state: State, done: int) -> None:
        self.params, self.server_state, self.done = state["params"], state["server"], done
        stored = state["store"]
        self.store.load({**stored, "trees": self.executor.take(stored["ids"].numpy(), stored["trees"])})
        if self.ledger is not None:
            self.ledger.load(state["privacy"])

    def personal_models(self) -> tuple[Ints, Tree]:
        """Clients seen and the stack of their personal models."""
        kept = self._stored()["trees"]
        models: Tree = kept.get("personal", {})
        if not models:
            return self.store.ids, kept.get("local", {})
        # A client that has not made one yet (all its updates were dropped) would use the global model.
        unknown = ~finite(models, len(self.store.ids))
        return self.store.ids, {
            name: torch.where(unknown.view(-1, *[1] * (value.dim() - 1)), self.params[name], value)
            for name, value in models.items()
        }

    def _stored(self) -> State:
        stored = self.store.saved()
        kept = {**stored["trees"], **self.executor.collect(stored["ids"].numpy())}
        return {**stored, "trees": {name: kept[name] for name in sorted(kept)}}

    def _fresh(self, ids: Tensor) -> Held:
        return self.executor.fresh(ids, self.initial, self.keeps_local)

    def _bill(self, ids: Ints, replies: Replies, down: Down) -> Tree:
        """Per client that was asked: whether it replied, and its bytes, paid whether or not the update was of use."""
        replied = torch.zeros(len(ids), dtype=torch.int64)
        replied[replies.rows] = 1
        sent = cost.down_bytes(down, self.task.blocks, len(ids))
        if replies.unsent:
            sent *= torch.tensor([int(client) not in replies.unsent for client in ids])
        size = replies.upload_bytes()
        spent = {"rounds": replied, "up": size * replied, "down": sent}
        self.store.count(ids, spent)
        return spent

    def _privacy(self, ids: Ints, replies: Replies, taken: int) -> Spent | None:
        if self.ledger is None:
            return None
        sent = np.array([client not in replies.unsent for client in ids.tolist()], bool)
        return self.ledger.after(ids[sent], taken)

    def _scores(self, split: str) -> Evaluations:
        """The named evaluations on a split; clients' are of all clients seen so far."""
        whole = NOTHING
        if self.method.has_global(self.task):
            one = {name: value.unsqueeze(0) for name, value in self.params.items()}
            with torch.no_grad():
                values = self.task.evaluate_server(one, "test" if split == "test" else "public")
            whole = Scores({name: float(value[0]) for name, value in values.items()})
        known = self.store.scores
        clients = {name: self._over_clients(values) for name, values in known[split].items()} if known else {}
        if known and "personal" not in clients:
            clients["personal"] = clients["trained"]  # the personal model is the trained one
        return Evaluations(global_=whole, **clients)

    def _over_clients(self, values: Tree) -> Scores:
        means = {metric: float(value.double().nanmean()) for metric, value in values.items()}
        head = values[self.task.headline].double()
        head = head[torch.isfinite(head)]
        if not len(head):
            return Scores({**means, "std": None, "p10": None})
        return Scores({**means, "std": float(head.std(correction=0)), "p10": float(np.quantile(head.numpy(), 0.1))})


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


def _spread(value: Tensor) -> Spread:
    value = value.double()
    return Spread(float(value.mean()), float(value.min()), float(value.max()))


def _plain(value: Tensor) -> list[float]:
    return [float(f"{number:.6g}") for number in value.tolist()]


def _note(value: Any) -> Any:
    """A number as it is; one number per client as a list, or as their spread when there are many."""
    if not isinstance(value, Tensor):
        return value
    if value.dim() == 0:
        return float(value)
    return _plain(value) if len(value) <= LISTED else asdict(_spread(value))
