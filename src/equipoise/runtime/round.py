"""The round: decisions 0 to 5 in order, four named evaluations, bytes; and the state that carries to the next."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equipoise.contract import Down, Method, Server, State, Task, Training, Tree, Up
from equipoise.data.federation import Ints
from equipoise.runtime import cost, random
from equipoise.runtime.executors import EXECUTORS
from equipoise.runtime.store import ClientStore

NAMED = ("received", "trained", "personal")
LISTED = 1000  # cohorts up to this size have per-client decisions in the log

RoundLog = dict[str, Any]
"""One JSON object a round; see :meth:`Federation.round`."""


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
    """A federation in one process. All that changes is in :meth:`state`."""

    def __init__(self, method: Method, task: Task, training: Training, schedule: Schedule) -> None:
        self.method, self.task, self.training, self.schedule = method, task, training, schedule
        self.executor = EXECUTORS[schedule.executor](method, task, training, schedule.seed, schedule.rounds)
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
        """
        started = time.perf_counter()
        s, method, task = self.schedule, self.method, self.task
        t = self.done + 1
        ids = random.cohort(s.seed, t, task.clients, s.participation)
        tensor_ids = torch.from_numpy(ids)
        last = t == s.rounds
        evaluating = last or t % s.eval_every == 0
        splits = tuple(split for split in ("test", "val") if task.has(split)) if evaluating else ()

        server = Server(task, self.training, self.params, self.server_state, s.seed, t, s.rounds)
        with torch.no_grad():
            down, server.state = method.give(server, tensor_ids)
            held = self.store.gather(ids, ("local", "state", "source"))
            out = self.executor.run(t, tensor_ids, down, held, splits)
            finite = _finite(out["up"]) & _finite(out["held"]["local"])
            self._write_back(ids, out, down, finite)
            if bool(finite.any()):
                up = Up(**pytree.tree_map(lambda value: value if bool(finite.all()) else value[finite], out["up"]))
                replied = tensor_ids[finite]
                weights, server.state = method.weigh(server, replied, up)
                self.params, server.state = method.aggregate(server, replied, up, weights)
                server.params = self.params
        self.server_state, self.done = server.state, t

        log: RoundLog = {"round": t, "clients": len(ids), "seen": len(self.store.ids)}
        if evaluating:
            log |= self._scores(splits)
        log["train"] = {name: _spread(value) for name, value in out["train"].items()}
        if len(ids) <= LISTED and any(value["min"] != value["max"] for value in log["train"].values()):
            log["decisions"] = {name: _plain(value) for name, value in out["train"].items()}
        log["bytes"] = {
            "up": int(cost.up_bytes(out["up"], len(ids)).sum()),
            "down": int(cost.down_bytes(down, task.blocks, len(ids)).sum()),
        }
        log["dropped"] = ids[~finite.numpy()].tolist()
        notes = {**out["notes"], **server.notes}
        if notes:
            log["notes"] = {name: _note(value) for name, value in notes.items()}
        stop = method.stop(server)
        if stop:
            log["stop"] = stop
        log["seconds"] = time.perf_counter() - started
        return log

    def state(self) -> State:
        """Everything that the next round depends on."""
        return {"params": self.params, "server": self.server_state, "store": self.store.state()}

    def load(self, state: State, done: int) -> None:
        self.params, self.server_state, self.done = state["params"], state["server"], done
        self.store.load(state["store"])

    def personal_models(self) -> tuple[Ints, Tree]:
        """Clients seen and the stack of their personal models."""
        models: Tree = self.store.tree("personal")
        if not models:
            return self.store.ids, self.store.tree("local")
        # A client that has not made one yet (all its updates were dropped) would use the global model.
        unknown = ~_finite(models)
        return self.store.ids, {
            name: torch.where(unknown.view(-1, *[1] * (value.dim() - 1)), self.params[name], value)
            for name, value in models.items()
        }

    def _fresh(self, ids: Tensor) -> State:
        k = len(ids)

        def spread(tree: State) -> State:
            expanded: State = pytree.tree_map(lambda value: value.expand(k, *value.shape).clone(), tree)
            return expanded

        return {
            "local": spread(self.initial) if self.keeps_local else {},
            "state": spread(self.method.client_init(self.task, self.initial)),
            "source": self.task.source_init(ids),
            "counts": {name: torch.zeros(k, dtype=torch.int64) for name in ("rounds", "up", "down")},
        }

    def _write_back(self, ids: Ints, out: State, down: Down, finite: Tensor) -> None:
        """A client whose update was not finite keeps what it held, but its bytes are paid."""
        everybody = torch.ones_like(finite)
        counts = self.store.gather(ids, ("counts",))["counts"]
        counts = {
            "rounds": counts["rounds"] + 1,
            "up": counts["up"] + cost.up_bytes(out["up"], len(ids)),
            "down": counts["down"] + cost.down_bytes(down, self.task.blocks, len(ids)),
        }
        self.store.scatter(ids, {"counts": counts}, everybody)
        held = out["held"] if self.keeps_local else {**out["held"], "local": {}}
        scores = {"scores": out["scores"]} if out["scores"] else {}
        self.store.scatter(ids, {**held, **scores}, finite)

    def _scores(self, splits: tuple[str, ...]) -> RoundLog:
        scores, log = self.store.tree("scores"), RoundLog()
        whole = self.method.has_global(self.task)
        one = {name: value.unsqueeze(0) for name, value in self.params.items()}
        for split in splits:
            named: RoundLog = {"global": None}
            if whole:
                with torch.no_grad():
                    values = self.task.evaluate_server(one, "test" if split == "test" else "public")
                named["global"] = {name: _number(value[0]) for name, value in values.items()}
            for name in NAMED:
                values = scores[split].get(name, scores[split]["trained"])
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


def _finite(tree: State) -> Tensor:
    """Per client: whether every number is finite."""
    leaves = [value for value in pytree.tree_leaves(tree) if value.is_floating_point()]
    if not leaves:
        return torch.ones(len(pytree.tree_leaves(tree)[0]) if pytree.tree_leaves(tree) else 1, dtype=torch.bool)
    return torch.stack([torch.isfinite(value).reshape(len(value), -1).all(1) for value in leaves]).all(0)


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
