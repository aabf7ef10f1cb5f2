"""What clients keep between rounds: stacks that grow with the clients seen, not with the population."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equipoise.contract import State
from equipoise.data.federation import Ints


class ClientStore:
    """Named trees of per-client tensors. A client gets its slot when it is first gathered."""

    def __init__(self, clients: int, fresh: Callable[[Tensor], State]) -> None:
        """``fresh(ids)`` gives the stacks of clients that were never seen."""
        self._fresh = fresh
        self._slot = np.full(clients, -1, np.int32)
        self._ids: Ints = np.empty(0, np.int64)
        self._trees: State = {}

    @property
    def ids(self) -> Ints:
        """Clients seen so far, in the order of their slots."""
        return self._ids

    def tree(self, name: str) -> State:
        """The stacks ``[seen, ...]`` of one name, in the order of :attr:`ids`."""
        tree: State = self._trees.get(name, {})
        return tree

    def gather(self, ids: Ints, names: tuple[str, ...]) -> State:
        self._admit(ids)
        where = self._where(ids)
        return {
            name: pytree.tree_map(lambda value: value if where is None else value[where], self._trees[name])
            for name in names
        }

    def scatter(self, ids: Ints, trees: State, keep: Tensor) -> None:
        """Write back the rows of ``trees`` for which ``keep`` holds; a name that is new is unknown (NaN) elsewhere."""
        where, whole = self._where(ids), bool(keep.all())
        for name, tree in trees.items():
            if where is None and whole:
                self._trees[name] = tree
                continue
            slots = torch.from_numpy(self._slot[ids].astype(np.int64))[keep]
            old = self._trees.get(name)
            if old is None:
                old = pytree.tree_map(lambda value: value.new_full((len(self._ids), *value.shape[1:]), torch.nan), tree)
            self._trees[name] = pytree.tree_map(
                lambda held, value, slots=slots: held.index_copy(0, slots, value[keep]), old, tree
            )

    def state(self) -> State:
        return {"ids": torch.from_numpy(self._ids), "trees": self._trees}

    def load(self, state: State) -> None:
        self._ids = state["ids"].numpy()
        self._slot[self._ids] = np.arange(len(self._ids))
        self._trees = state["trees"]

    def _where(self, ids: Ints) -> Tensor | None:
        """Slots of these clients, or ``None`` when they are all that is stored, in order."""
        slots = self._slot[ids]
        if len(slots) == len(self._ids) and (slots == np.arange(len(slots))).all():
            return None
        return torch.from_numpy(slots.astype(np.int64))

    def _admit(self, ids: Ints) -> None:
        new = ids[self._slot[ids] < 0]
        if not len(new):
            return
        self._slot[new] = np.arange(len(self._ids), len(self._ids) + len(new))
        self._ids = np.concatenate([self._ids, new])
        fresh = self._fresh(torch.from_numpy(new))
        for name, tree in fresh.items():
            old = self._trees.get(name)
            self._trees[name] = tree if old is None else pytree.tree_map(lambda a, b: torch.cat([a, b]), old, tree)
        for name in self._trees.keys() - fresh.keys():
            self._trees[name] = pytree.tree_map(
                lambda value: torch.cat([value, value.new_full((len(new), *value.shape[1:]), torch.nan)]),
                self._trees[name],
            )
