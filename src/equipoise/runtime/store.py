"""What clients keep between rounds: rows that come with the clients seen, not with the population."""

from __future__ import annotations

from collections.abc import Callable, Container

import numpy as np
import torch
from torch import Tensor

from equipoise.contract import ClientState, Method, Scores, State, Task, Params
from equipoise.core.trees import to_dict, index
from equipoise.data.federation import Ints
from equipoise.runtime.rows import MemoryBudget, ClientTable

HELD = ("local", "state", "source", "personal")
ALWAYS = ("scores", "counts")  # of all clients together in every round, so in memory: a few numbers each
KEPT = (*HELD, *ALWAYS)


def keeps_local(method: Method, task: Task, keep_models: bool) -> bool:
    """Whether the models that clients hold are kept."""
    return method.needs_previous_model or keep_models or not method.has_global(task)


class ClientStore:
    """What is kept of each client. A client gets its slot when it is first asked for."""

    def __init__(self, clients: int, fresh: Callable[[Tensor], ClientState], room: MemoryBudget | None = None) -> None:
        """``fresh(ids)`` gives the stacks of clients that were never seen."""
        self._init_clients, self._room = fresh, room or MemoryBudget()
        self._slot = np.full(clients, -1, np.int32)
        self._id: Ints = np.empty(clients, np.int64)
        self._seen = 0
        self._rows: dict[str, ClientTable] = {}
        self._changed = np.zeros(clients, bool)

    @property
    def ids(self) -> Ints:
        """Clients seen so far, in the order of their slots."""
        return self._id[: self._seen]

    @property
    def local(self) -> Params:
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
    def personal(self) -> Params:
        """Stacks of the models that clients would use, where these are others than they hold; else empty."""
        return self._tree("personal")

    @property
    def scores(self) -> Scores:
        """Each client's scores of its last evaluation."""
        return self._tree("scores")

    @property
    def counts(self) -> Params:
        """Per client: rounds in which it replied, and its bytes up and down."""
        return self._tree("counts")

    def held(self, ids: Ints) -> ClientState:
        """Stacks of what these clients hold."""
        self._allocate(ids)
        where = self._where(ids)
        return ClientState(*(self._some(name, where) for name in ("local", "state", "source")))

    def commit(self, ids: Ints, client_state: ClientState, scores: Scores, taken: Tensor) -> None:
        """Write back what these clients hold, and scores if there are any, where the reply was ``taken``."""
        self._scatter(ids, {**to_dict(client_state), **({"scores": scores} if scores else {})}, taken)

    def rows(self, ids: Ints, names: Container[str] = KEPT) -> State:
        """What is kept of these clients under some names."""
        self._allocate(ids)
        slots = torch.from_numpy(self._slot[ids].astype(np.int64))
        return {name: rows.take(slots) for name, rows in self._rows.items() if name in names}

    def write(self, ids: Ints, trees: State) -> None:
        """What is kept of these clients, from elsewhere."""
        self._allocate(ids)
        self._scatter(ids, trees, torch.ones(len(ids), dtype=torch.bool))

    def count(self, ids: Ints, more: Params) -> None:
        """Add to the counts of these clients."""
        self._allocate(ids)
        sums = dict(self._some("counts", self._where(ids)))
        sums |= {name: sums[name] + number for name, number in more.items()}
        self._scatter(ids, {"counts": sums}, torch.ones(len(ids), dtype=torch.bool))

    def prefetch(self, ids: Ints) -> None:
        """What these clients hold is needed soon."""
        slots = self._slot[ids]
        known = torch.from_numpy(slots[slots >= 0].astype(np.int64))
        for rows in self._rows.values():
            rows.prefetch(known)

    def saved(self) -> State:
        """Everything, for a checkpoint."""
        trees = {name: rows.first(self._seen) for name, rows in self._rows.items()}
        return {"ids": torch.from_numpy(self.ids), "trees": trees}

    def load(self, state: State) -> None:
        """The inverse of :meth:`saved`."""
        ids = state["ids"].numpy()
        self.reserve(len(ids))
        self.restore(ids, np.arange(len(ids)), state["trees"])
        self._changed[ids] = True

    def reserve(self, seen: int) -> None:
        """So many clients come back by :meth:`restore`."""
        self._seen, self._rows = seen, {}

    def restore(self, ids: Ints, slots: Ints, trees: State) -> None:
        """Some of the clients of a checkpoint, with the slots that they had."""
        self._id[slots], self._slot[ids] = ids, slots
        self._scatter(ids, trees, torch.ones(len(ids), dtype=torch.bool))
        self._changed[ids] = False

    def slots(self, ids: Ints) -> Ints:
        """The places of these clients among those seen."""
        return self._slot[ids].astype(np.int64)

    def changed(self) -> Ints:
        """Clients of whom something was written since they were restored or :meth:`forget_changes` was called."""
        return np.flatnonzero(self._changed)

    def forget_changes(self) -> None:
        self._changed[:] = False

    def _tree(self, name: str) -> State:
        """To be read before anything else is written."""
        return self._rows[name].view(self._seen) if name in self._rows else {}

    def _some(self, name: str, where: Tensor | None) -> State:
        rows = self._rows[name]
        return rows.first(self._seen) if where is None else rows.take(where)

    def _scatter(self, ids: Ints, trees: State, keep: Tensor) -> None:
        """Write the rows of ``trees`` for which ``keep`` holds; a name that is new is unknown (NaN) elsewhere."""
        where, whole = self._where(ids), bool(keep.all())
        self._changed[ids] = True
        for name, tree in trees.items():
            if name not in self._rows:
                self._rows[name] = self._made(name, tree)
                if where is not None or not whole:
                    self._rows[name].fill_missing(0, self._seen)
            if where is None and whole and self._rows[name].replace(tree):
                continue
            slots = torch.from_numpy(self.slots(ids))
            if not whole:
                slots, tree = slots[keep], index(tree, keep)
            self._rows[name].put(slots, tree)

    def _where(self, ids: Ints) -> Tensor | None:
        """Slots of these clients, or ``None`` when they are all that is stored, in order."""
        slots = self._slot[ids]
        if len(slots) == self._seen and (slots == np.arange(len(slots))).all():
            return None
        return torch.from_numpy(slots.astype(np.int64))

    def _allocate(self, ids: Ints) -> None:
        new = ids[self._slot[ids] < 0]
        if not len(new):
            return
        first, self._seen = self._seen, self._seen + len(new)
        slots = np.arange(first, self._seen)
        self._slot[new], self._id[slots] = slots, new
        counts = {name: torch.zeros(len(new), dtype=torch.int64) for name in ("rounds", "up", "down")}
        fresh = {**to_dict(self._init_clients(torch.from_numpy(new))), "counts": counts}
        self._scatter(new, fresh, torch.ones(len(new), dtype=torch.bool))
        for name in self._rows.keys() - fresh.keys():
            self._rows[name].fill_missing(first, self._seen)

    def _made(self, name: str, like: State) -> ClientTable:
        return ClientTable(like, len(self._slot), MemoryBudget() if name in ALWAYS else self._room)
