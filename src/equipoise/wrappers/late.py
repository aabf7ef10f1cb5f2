"""Any method with late clients: what they upload reaches the aggregate some rounds after it was made.

Who is late stays so for the whole run. An upload that is on its way is state of the server: a checkpoint holds it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equipoise.contract import Down, Method, Server, State, Task, Training, Tree, Up
from equipoise.core.errors import UsageError

STREAM = 0x1A7E  # of who is late


def delayed(method: Method, delay: int, late: float) -> Method:
    """The method with this share of its clients ``delay`` rounds late; itself when nobody is."""
    if not delay:
        return method
    kind = type(method)
    made = type(f"Delayed{kind.__name__}", (_Delayed, kind), {"delay": delay, "late": late})
    wrapped: Method = made(**{item.name: getattr(method, item.name) for item in fields(method)})
    return wrapped


def late_clients(seed: int, clients: int, share: float) -> Tensor:
    """Ids of the clients that are late, drawn by the seed."""
    order = np.random.default_rng([seed, STREAM]).permutation(clients)
    return torch.from_numpy(np.sort(order[: round(share * clients)]))


class _Delayed(Method):
    """The base's server meets, in round t, what the others send in t and what the late ones sent in t - delay."""

    delay: ClassVar[int]
    late: ClassVar[float]

    def check(self, task: Task, training: Training) -> None:
        super().check(task, training)
        own_give = any("give" in vars(kind) for kind in type(self).__mro__ if kind not in (_Delayed, Method))
        if self.one_start or self.needs_everybody or own_give:
            raise UsageError(
                f"{self.name} is not offered with delay: its server counts on replies to what it sent in the same "
                "round; choose another method"
            )

    def server_init(self, task: Task, params: Tree) -> State:
        return {"base": super().server_init(task, params), "on_the_way": {}}

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        down, state = super().give(s.within("base"), ids)
        return down, {**s.state, "base": state}

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        late = torch.isin(ids, late_clients(s.seed, s.task.clients, self.late))
        sent = {"ids": ids, "params": up.params, "extra": up.extra, "metrics": up.metrics}
        waiting = {**s.state["on_the_way"], str(s.round + self.delay): _rows(sent, late)}
        due = [waiting.pop(key) for key in sorted(waiting, key=int) if int(key) <= s.round]
        arrived = pytree.tree_map(lambda *parts: torch.cat(parts), _rows(sent, ~late), *due)
        s.notes["late"] = sum(len(part["ids"]) for part in due)
        state = {**s.state, "on_the_way": waiting, "arrived": arrived}
        if not len(arrived["ids"]):
            return torch.ones(0), state
        weights, state["base"] = super().weigh(s.within("base"), *_unpacked(arrived))
        return weights, state

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        arrived, state = s.state["arrived"], {key: value for key, value in s.state.items() if key != "arrived"}
        if not len(arrived["ids"]):  # everybody is late, and nothing has come yet
            return s.params, state
        params, state["base"] = super().aggregate(s.within("base"), *_unpacked(arrived), weights)
        return params, state

    def stop(self, s: Server) -> str | None:
        return super().stop(s.within("base"))


def _rows(tree: State, which: Tensor) -> State:
    rows: State = pytree.tree_map(lambda value: value[which], tree)
    return rows


def _unpacked(arrived: State) -> tuple[Tensor, Up]:
    return arrived["ids"], Up(arrived["params"], arrived["extra"], arrived["metrics"])
