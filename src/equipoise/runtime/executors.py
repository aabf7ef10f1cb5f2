"""Two executors with one meaning: ``Loop`` takes one client after another, ``Stacked`` all along a leading axis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from equipoise.contract import Down, Method, State, Task, Train, Training, When
from equipoise.runtime.client import RunningClient, client_round


class Executor(ABC):
    """Runs the client half of a method for a cohort and gives stacks ``[K, ...]`` of everything that comes out."""

    def __init__(self, method: Method, task: Task, training: Training, seed: int, rounds: int) -> None:
        self.method, self.task, self.training, self.seed, self.rounds = method, task, training, seed, rounds

    @abstractmethod
    def run(self, round: int, ids: Tensor, down: Down, held: State, splits: tuple[str, ...]) -> State:
        """``held``: stacks of what these clients keep, see :class:`RunningClient`."""

    def _one(self, round: int, splits: tuple[str, ...], id: Tensor, down: State, held: State) -> State:
        when = When(self.seed, round, self.training)
        train = Train(**down["train"]) if "train" in down else None
        parcel = Down(down["params"], down["sent"], train, down["extra"], down["each"])
        client = RunningClient(self.task, self.training, when, self.rounds, id, parcel, held)
        return client_round(self.method, client, splits)


class Loop(Executor):
    """One client after another: obvious, the oracle of the others."""

    def run(self, round: int, ids: Tensor, down: Down, held: State, splits: tuple[str, ...]) -> State:
        shared, own = _parcel(down)
        with torch.no_grad():
            outs = [
                self._one(round, splits, ids[k], _merge(shared, _row(own, k)), _row(held, k)) for k in range(len(ids))
            ]
        return stack(outs)


class Stacked(Executor):
    """All clients of a chunk at once."""

    chunk = 1024
    """Clients a call: bounds the memory of batch plans whatever the size of the cohort."""

    def run(self, round: int, ids: Tensor, down: Down, held: State, splits: tuple[str, ...]) -> State:
        shared, own = _parcel(down)

        def mapped(id: Tensor, own: State, held: State) -> State:
            return self._one(round, splits, id, _merge(shared, own), held)

        outs = []
        with torch.no_grad():
            for first in range(0, len(ids), self.chunk):
                here = slice(first, first + self.chunk)
                outs.append(vmap(mapped)(ids[here], _row(own, here), _row(held, here)))
        return outs[0] if len(outs) == 1 else pytree.tree_map(lambda *parts: torch.cat(parts), *outs)


EXECUTORS: dict[str, type[Executor]] = {"loop": Loop, "stacked": Stacked}


def stack(trees: list[State]) -> State:
    """One tree of stacks from a list of trees."""
    result: State = pytree.tree_map(lambda *values: torch.stack(values), *trees)
    return result


def _row(tree: State, k: int | slice) -> State:
    row: State = pytree.tree_map(lambda value: value[k], tree)
    return row


def _parcel(down: Down) -> tuple[State, State]:
    """What goes to everybody alike, and what differs by client (leading axis [K])."""
    own: State = {"each": down.each, "sent": {b: v for b, v in down.sent.items() if isinstance(v, Tensor)}}
    if down.train is not None:
        own["train"] = {"epochs": down.train.epochs, "lr": down.train.lr}
    shared = {
        "params": down.params,
        "extra": down.extra,
        "sent": {b: v for b, v in down.sent.items() if isinstance(v, bool)},
    }
    return shared, own


def _merge(shared: State, own: State) -> Any:
    return {**shared, **own, "sent": {**shared["sent"], **own["sent"]}}
