"""Two executors with one meaning: ``Loop`` takes one client after another, ``Stacked`` all along a leading axis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from equipoise.contract import Down, Method, State, Task, Train, Training, Tree, When
from equipoise.core.trees import row, stack
from equipoise.runtime.client import RunningClient, client_round


@dataclass
class Replies:
    """What came back of a round: stacks ``[R, ...]`` of the clients that replied, and why others did not."""

    rows: Tensor
    """Their places among the clients that were asked, ascending."""
    out: State
    """What :func:`~equipoise.runtime.client.client_round` gives; empty if nobody replied."""
    absent: dict[int, str] = field(default_factory=dict)
    unsent: frozenset[int] = frozenset()
    """Clients that could not be reached at all: they are not billed."""


class Executor(ABC):
    """Runs the client half of a method for a cohort."""

    holds: ClassVar[tuple[str, ...]] = ("local", "state", "source")
    """What is kept here of each client between rounds: the names of :meth:`fresh`."""
    fewest: int = 1
    """Usable replies below which the round changes nothing."""

    def __init__(self, method: Method, task: Task, training: Training, seed: int, rounds: int) -> None:
        self.method, self.task, self.training, self.seed, self.rounds = method, task, training, seed, rounds

    @abstractmethod
    def run(self, round: int, ids: Tensor, down: Down, held: State, splits: tuple[str, ...]) -> Replies:
        """``held``: stacks of what is kept of these clients; replies have it as it is after the round."""

    def fresh(self, ids: Tensor, initial: Tree, keeps_local: bool) -> State:
        """Stacks of what is kept of clients that never took part."""
        return fresh_clients(self.method, self.task, ids, initial, keeps_local)

    def one(self, round: int, splits: tuple[str, ...], id: Tensor, down: State, held: State) -> State:
        """One client's round; ``down`` is its :func:`parcel`."""
        when = When(self.seed, round, self.training)
        train = Train(**down["train"]) if "train" in down else None
        got = Down(down["params"], down["sent"], train, down["extra"], down["each"])
        client = RunningClient(self.task, self.training, when, self.rounds, id, got, held)
        return client_round(self.method, client, splits)


class Loop(Executor):
    """One client after another: obvious, the oracle of the others."""

    def run(self, round: int, ids: Tensor, down: Down, held: State, splits: tuple[str, ...]) -> Replies:
        shared, own = split_parcel(down)
        with torch.no_grad():
            outs = [self.one(round, splits, ids[k], parcel(shared, own, k), row(held, k)) for k in range(len(ids))]
        return Replies(torch.arange(len(ids)), stack(outs))


class Stacked(Executor):
    """All clients of a chunk at once."""

    chunk = 1024
    """Clients a call: bounds the memory of batch plans whatever the size of the cohort."""

    def run(self, round: int, ids: Tensor, down: Down, held: State, splits: tuple[str, ...]) -> Replies:
        shared, own = split_parcel(down)

        def mapped(id: Tensor, own: State, held: State) -> State:
            return self.one(round, splits, id, _merge(shared, own), held)

        outs = []
        with torch.no_grad():
            for first in range(0, len(ids), self.chunk):
                here = slice(first, first + self.chunk)
                outs.append(vmap(mapped)(ids[here], row(own, here), row(held, here)))
        out = outs[0] if len(outs) == 1 else pytree.tree_map(lambda *parts: torch.cat(parts), *outs)
        return Replies(torch.arange(len(ids)), out)


def fresh_clients(method: Method, task: Task, ids: Tensor, initial: Tree, keeps_local: bool) -> State:
    """Stacks of what clients hold before their first round."""

    def spread(tree: State) -> State:
        copies: State = pytree.tree_map(lambda value: value.expand(len(ids), *value.shape).clone(), tree)
        return copies

    return {
        "local": spread(initial) if keeps_local else {},
        "state": spread(method.client_init(task, initial)),
        "source": task.source_init(ids),
    }


def split_parcel(down: Down) -> tuple[State, State]:
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


def parcel(shared: State, own: State, k: int) -> State:
    """What the client at place ``k`` is sent."""
    return _merge(shared, row(own, k))


def _merge(shared: State, own: State) -> State:
    return {**shared, **own, "sent": {**shared["sent"], **own["sent"]}}
