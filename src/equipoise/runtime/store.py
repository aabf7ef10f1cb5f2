"""What clients keep between rounds: stacks that grow with the clients seen, not with the population."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equipoise.contract import Held, Method, Scores, State, Task, Tree
from equipoise.core.trees import plain, row
from equipoise.data.federation import Ints


def keeps_local(method: Method, task: Task, keep_models: bool) -> bool:
    """Whether the models that clients hold are kept."""
    return method.keeps_model or keep_models or not method.has_global(task)


class ClientStore:
    """What is kept of each client. A client gets its slot when it is first asked for."""

    def __init__(self, clients: int, fresh: Callable[[Tensor], Held]) -> None:
        """``fresh(ids)`` gives the stacks of clients that were never seen."""
        self._fresh = fresh
        self._slot = np.full(clients, -1, np.int32)
        self._ids: Ints = np.empty(0, np.int64)
        self._trees: State = {}

    @property
    def ids(self) -> Ints:
        """Clients seen so far, in the order of their slots."""
        return self._ids

    @property
    def local(self) -> Tree:
        """Stacks ``[seen, ...]`` of the models that clients hold, in the order of :attr:`ids`."""
        return self._tree("local")

    @property
    def state(self) -> State:
        """Stacks of the clients' own states."""
        return self._tree("state")

    @property
    def source(self) -> State:
        """Stacks of the states of the clients' data sources."""
        return self._tree("source")

    @property
    def personal(self) -> Tree:
        """Stacks of the models that clients would use, where these are others than they hold; else empty."""
        return self._tree("personal")

    @property
    def scores(self) -> Scores:
        """Each client's scores of its last evaluation."""
        return self._tree("scores")

    @property
    def counts(self) -> Tree:
        """Per client: rounds in which it replied, and its bytes up and down."""
        return self._tree("counts")

    def held(self, ids: Ints) -> Held:
        """Stacks of what these clients hold."""
        self._admit(ids)
        where = self._where(ids)
        held = Held(self._trees["local"], self._trees["state"], self._trees["source"])
        return held if where is None else row(held, where)

    def keep(self, ids: Ints, held: Held, scores: Scores, taken: Tensor) -> None:
        """Write back what these clients hold, and scores if there are any, where the reply was ``taken``."""
        self._scatter(ids, {**plain(held), **({"scores": scores} if scores else {})}, taken)

    def rows(self, ids: Ints) -> State:
        """All that is kept of these clients."""
        self._admit(ids)
        return row(self._trees, torch.from_numpy(self._slot[ids].astype(np.int64)))

    def put(self, ids: Ints, trees: State) -> None:
        """What is kept of these clients, from elsewhere."""
        self._admit(ids)
        self._scatter(ids, trees, torch.ones(len(ids), dtype=torch.bool))

    def count(self, ids: Ints, more: Tree) -> None:
        """Add to the counts of these clients."""
        self._admit(ids)
        where = self._where(ids)
        sums = {name: (old if where is None else old[where]) for name, old in self.counts.items()}
        sums |= {name: sums[name] + number for name, number in more.items()}
        self._scatter(ids, {"counts": sums}, torch.ones(len(ids), dtype=torch.bool))

    def _tree(self, name: str) -> State:
        tree: State = self._trees.get(name, {})
        return tree

    def _scatter(self, ids: Ints, trees: State, keep: Tensor) -> None:
        """Write the rows of ``trees`` for which ``keep`` holds; a name that is new is unknown (NaN) elsewhere."""
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

    def saved(self) -> State:
        """Everything, for a checkpoint."""
        return {"ids": torch.from_numpy(self._ids), "trees": self._trees}

    def load(self, state: State) -> None:
        """The inverse of :meth:`saved`."""
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
        counts = {name: torch.zeros(len(new), dtype=torch.int64) for name in ("rounds", "up", "down")}
        fresh = {**plain(self._fresh(torch.from_numpy(new))), "counts": counts}
        for name, tree in fresh.items():
            old = self._trees.get(name)
            self._trees[name] = tree if old is None else pytree.tree_map(lambda a, b: torch.cat([a, b]), old, tree)
        for name in self._trees.keys() - fresh.keys():
            self._trees[name] = pytree.tree_map(
                lambda value: torch.cat([value, value.new_full((len(new), *value.shape[1:]), torch.nan)]),
                self._trees[name],
            )
