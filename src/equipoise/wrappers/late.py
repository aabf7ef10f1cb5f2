"""Any method with late clients: what they upload reaches the aggregate some rounds after it was made.

Who is late stays so for the whole run. An upload that is on its way is state of the server: a checkpoint holds it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from equipoise.contract import Around, Method, Server, State, Task, Training, Tree, Up
from equipoise.core import streams, trees
from equipoise.core.errors import UsageError


def delayed(method: Method, delay: int, late: float) -> Method:
    """The method with this share of its clients ``delay`` rounds late; itself when nobody is."""
    return Delayed(method, delay, late) if delay else method


def late_clients(seed: int, clients: int, share: float) -> Tensor:
    """Ids of the clients that are late, drawn by the seed."""
    order = streams.generator(seed, streams.LATE).permutation(clients)
    return torch.from_numpy(np.sort(order[: round(share * clients)]))


@trees.message
@dataclass
class Parcel:
    """Uploads with the clients that made them."""

    ids: Tensor
    up: Up


@dataclass(frozen=True)
class Delayed(Around):
    """The server below meets, in round t, what the others send in t and what the late ones sent in t - delay."""

    delay: int
    late: float

    def check(self, task: Task, training: Training) -> None:
        super().check(task, training)
        if not self.patient:
            raise UsageError(
                f"{self.name} is not offered with delay: its server counts on replies to what it sent in the same "
                "round; choose another method"
            )

    def server_init(self, task: Task, params: Tree) -> State:
        return super().server_init(task, params) | {"on_the_way": {}}

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        late = torch.isin(ids, late_clients(s.seed, s.task.clients, self.late))
        sent = Parcel(ids, up)
        waiting = {**s.state["on_the_way"], str(s.round + self.delay): trees.plain(trees.row(sent, late))}
        due = [trees.revive(Parcel, waiting.pop(key)) for key in sorted(waiting, key=int) if int(key) <= s.round]
        arrived = trees.concatenate([trees.row(sent, ~late), *due])
        s.notes["late"] = sum(len(part.ids) for part in due)
        state = {**s.state, "on_the_way": waiting, "arrived": trees.plain(arrived)}
        if not len(arrived.ids):
            return torch.ones(0), state
        weights, below = self.below.weigh(s.within("base"), arrived.ids, arrived.up)
        return weights, state | {"base": below}

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        arrived, state = (
            trees.revive(Parcel, s.state["arrived"]),
            {key: value for key, value in s.state.items() if key != "arrived"},
        )
        if not len(arrived.ids):  # everybody is late, and nothing has come yet
            return s.params, state
        params, below = self.below.aggregate(s.within("base"), arrived.ids, arrived.up, weights)
        return params, state | {"base": below}
