"""Client states, one row per client: in memory up to a budget, then in memory-mapped files."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equipoise.core import ClientState, Method, Params, Scores, State, Task
from equipoise.data.federated_dataset import Ints
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import index, leaves, map_leaves, to_dict, tree_bytes
from equipoise.utils.serialization import align_up

SHARD_BYTES = 2**26  # of a file; it holds as many clients as fit
MAX_RESERVED_BYTES = 2**32  # reserved at once: a system may refuse more
MAX_FILLED_ROWS = 1024  # filled with missing values at once, which bounds their memory


@dataclass
class MemoryBudget:
    """Memory and folder for the client states of one process."""

    memory: int = 2**62
    """Bytes of memory that are left; rows that do not fit are in files."""
    folder: Path | None = None
    """Folder of the temporary files; None for the system's default."""


def missing_rows(value: Tensor, rows: int) -> Tensor:
    """Return rows of missing values: NaN, or 0 for whole numbers."""
    return value.new_full((rows, *value.shape[1:]), torch.nan if value.is_floating_point() else 0)


class ClientTable:
    """A tree of stacks with one row per client, in memory up to a budget, then in files."""

    def __init__(self, like: State, clients: int, budget: MemoryBudget) -> None:
        """Create a table without rows.

        Args:
            like: A stack of any length, with the names, shapes and types of the rows.
            clients: Largest number of rows.
            budget: Memory for all tables; what this one takes is subtracted.
        """
        self._template: State = map_leaves(lambda value: value[:1].clone(), like)
        size = tree_bytes(like, stacked=True)
        self.num_in_memory = clients if not size else min(clients, budget.memory // size)
        budget.memory -= self.num_in_memory * size
        # Memory that is not written yet costs nothing, but a system may refuse to reserve much.
        self._num_reserved = min(self.num_in_memory, max(1, MAX_RESERVED_BYTES // max(1, size)))
        self._memory: State = map_leaves(
            lambda value: value.new_empty((self._num_reserved, *value.shape[1:])), like
        )
        self._aliased = False  # whether a caller may hold these tensors: then a write copies them
        self._files = _ShardFiles(like, budget.folder) if self.num_in_memory < clients else None

    def first(self, count: int) -> State:
        """Return the first rows: the tensors themselves if these are all, else a copy."""
        if count == self.num_in_memory == self._num_reserved:
            self._aliased = True
            return self._memory
        return self.take(torch.arange(count))

    def view(self, count: int) -> State:
        """Return the first rows, valid until the next write."""
        if count <= self.num_in_memory:
            return index(self._memory, slice(count))
        return self.take(torch.arange(count))

    def take(self, slots: Tensor) -> State:
        """Return a copy of some rows."""
        if self._files is None:
            rows: State = map_leaves(lambda value: value.index_select(0, slots), self._memory)
            return rows
        in_memory = slots < self.num_in_memory
        rows = map_leaves(
            lambda value: value.new_empty((len(slots), *value.shape[1:])).index_copy_(
                0, in_memory.nonzero().flatten(), value[slots[in_memory]]
            ),
            self._memory,
        )
        in_files = ~in_memory
        self._files.read(slots[in_files] - self.num_in_memory, in_files.nonzero().flatten(), rows)
        return rows

    def write(self, slots: Tensor, rows: State) -> None:
        """Copy rows into these slots; tensors that :meth:`first` returned stay as they are."""
        if self._aliased:
            self._memory = map_leaves(lambda value: value.clone(), self._memory)
            self._aliased = False
        in_memory = slots < self.num_in_memory
        if bool(in_memory.any()):
            self._reserve(int(slots[in_memory].max()) + 1)
        if bool(in_memory.all()):
            map_leaves(lambda old, new: old.index_copy_(0, slots, new), self._memory, rows)
            return
        assert self._files is not None
        map_leaves(
            lambda old, new: old.index_copy_(0, slots[in_memory], new[in_memory]),
            self._memory,
            rows,
        )
        self._files.write(slots[~in_memory] - self.num_in_memory, index(rows, ~in_memory))

    def replace(self, rows: State) -> bool:
        """Take over these tensors as all rows without a copy; return False if rows are in files."""
        if self._files is not None or any(
            value.shape[0] != self.num_in_memory for value in leaves(rows)
        ):
            return False
        self._memory = rows
        self._aliased = True
        self._num_reserved = self.num_in_memory
        return True

    def fill_missing(self, first: int, last: int) -> None:
        """Fill rows `first` to `last` with missing values."""
        like = index(self._memory, slice(1)) if self.num_in_memory else self._template
        for slots in torch.arange(first, last).split(MAX_FILLED_ROWS):
            self.write(
                slots, map_leaves(lambda value, here=slots: missing_rows(value, len(here)), like)
            )

    def _reserve(self, count: int) -> None:
        """Make room in memory for this number of rows, at least doubling what is reserved."""
        if count <= self._num_reserved:
            return
        wanted = min(self.num_in_memory, max(count, 2 * self._num_reserved))
        num_new = wanted - self._num_reserved
        self._memory = map_leaves(
            lambda old: torch.cat([old, old.new_empty((num_new, *old.shape[1:]))]), self._memory
        )
        self._num_reserved = wanted

    def prefetch(self, slots: Tensor) -> None:
        """Ask the system to read these rows into memory: they are needed soon."""
        if self._files is not None:
            self._files.prefetch(slots[slots >= self.num_in_memory] - self.num_in_memory)


class _ShardFiles:
    """One record per client in memory-mapped files, each with the same number of records."""

    def __init__(self, like: State, folder: Path | None) -> None:
        """Compute the layout of a record; files are made when they are first needed."""
        self._folder = folder
        self._sizes = [value[0].nbytes for value in leaves(like)]
        self._record = sum(align_up(size) for size in self._sizes)
        self._records_per_shard = max(1, SHARD_BYTES // self._record)
        self._shards: dict[int, tuple[mmap.mmap, Tensor]] = {}

    def read(self, slots: Tensor, places: Tensor, into: State) -> None:
        """Read the records of these slots into the ``places`` of stacks."""
        for shard, in_shard, rows in self._by_shard(slots):
            records = shard[1][rows]
            for out, view in zip(leaves(into), self._leaf_views(records), strict=True):
                if view.numel():
                    out[places[in_shard]] = view.view(out.dtype).view(len(rows), *out.shape[1:])
            _release_pages(shard[0])

    def write(self, slots: Tensor, values: State) -> None:
        """Write stacks to the records of these slots."""
        for shard, in_shard, rows in self._by_shard(slots):
            records = torch.zeros(len(rows), self._record, dtype=torch.uint8)
            for value, view in zip(leaves(values), self._leaf_views(records), strict=True):
                if view.numel():
                    own = value[in_shard].contiguous()
                    view.copy_(own.view(len(rows), -1).view(torch.uint8))
            shard[1].index_copy_(0, rows, records)
            _release_pages(shard[0])

    def prefetch(self, slots: Tensor) -> None:
        """Ask the system to read these records into memory."""
        for shard, _, rows in self._by_shard(slots):
            for place in (rows * self._record).tolist():
                start = place // mmap.PAGESIZE * mmap.PAGESIZE
                shard[0].madvise(mmap.MADV_WILLNEED, start, place + self._record - start)

    def _leaf_views(self, records: Tensor) -> list[Tensor]:
        """Return the bytes of each leaf as views of the records."""
        views = []
        first = 0
        for size in self._sizes:
            views.append(records[:, first : first + size])
            first += align_up(size)
        return views

    def _by_shard(self, slots: Tensor) -> list[tuple[tuple[mmap.mmap, Tensor], Tensor, Tensor]]:
        """Return for each file: which of the slots are in it, and their records there."""
        number = slots // self._records_per_shard
        groups = []
        for n in number.unique().tolist():
            in_shard = (number == n).nonzero().flatten()
            groups.append((self._shard(n), in_shard, slots[in_shard] - n * self._records_per_shard))
        return groups

    def _shard(self, number: int) -> tuple[mmap.mmap, Tensor]:
        """Return a file and its records; the file is made when it is needed first."""
        if number not in self._shards:
            size = self._records_per_shard * self._record
            try:
                # A file without a name: it ends with the process.
                with tempfile.TemporaryFile(dir=self._folder) as file:
                    # Reserved here: a disk that is full later would kill the process.
                    os.posix_fallocate(file.fileno(), 0, size)
                    mapped = mmap.mmap(file.fileno(), size)
            except OSError as error:
                raise UsageError(
                    f"there is no room on disk for what clients hold ({error}): free some in "
                    f"'{self._folder or tempfile.gettempdir()}', or give more memory with "
                    "--client-memory-gib"
                ) from error
            self._shards[number] = (
                mapped,
                torch.frombuffer(mapped, dtype=torch.uint8).view(
                    self._records_per_shard, self._record
                ),
            )
        return self._shards[number]


def _release_pages(mapped: mmap.mmap) -> None:
    """Drop the file's pages from this process's memory; the file keeps them."""
    mapped.madvise(mmap.MADV_DONTNEED)


CLIENT_STATE_NAMES = ("local_params", "state", "data_state", "personal")
# A few numbers per client, which every round reads for all clients: always in memory.
IN_MEMORY_NAMES = ("scores", "counts")
STORED_NAMES = (*CLIENT_STATE_NAMES, *IN_MEMORY_NAMES)


def keeps_local(method: Method, task: Task, keep_models: bool) -> bool:
    """Return whether the store keeps the local models of clients.

    Args:
        method: The method, which may need a client's previous model.
        task: The task.
        keep_models: Whether the run keeps them in any case.
    """
    return method.capabilities.needs_previous_model or keep_models or not method.has_global(task)


class ClientStore:
    """State, models, scores and counts of each client that has participated.

    A client gets a slot when it is first asked for, so that memory grows with the clients that have
    participated, not with the population.
    """

    def __init__(
        self,
        clients: int,
        init_clients: Callable[[Tensor], ClientState],
        budget: MemoryBudget | None = None,
    ) -> None:
        """Create a store without clients.

        Args:
            clients: Size of the population.
            init_clients: Returns the initial states of clients, from their ids `[K]`.
            budget: Memory for client states; unlimited if None.
        """
        self._init_clients = init_clients
        self._budget = budget or MemoryBudget()
        self._slot = np.full(clients, -1, np.int32)
        self._id: Ints = np.empty(clients, np.int64)
        self._num_seen = 0
        self._tables: dict[str, ClientTable] = {}
        self._changed = np.zeros(clients, bool)

    @property
    def ids(self) -> Ints:
        """Clients seen so far, in the order of their slots."""
        return self._id[: self._num_seen]

    @property
    def local_params(self) -> Params:
        """Stacks ``[seen, ...]`` of the models that clients hold, in the order of :attr:`ids`."""
        return self._tree("local_params")

    @property
    def state(self) -> State:
        """Stacks of the clients' own states."""
        return self._tree("state")

    @property
    def data_state(self) -> State:
        """Stacks of the states of the clients' data sources."""
        return self._tree("data_state")

    @property
    def personal(self) -> Params:
        """Stacks of personal models, where they differ from the local ones; else empty."""
        return self._tree("personal")

    @property
    def scores(self) -> Scores:
        """Each client's scores of its last evaluation."""
        return self._tree("scores")

    @property
    def counts(self) -> Params:
        """Per client: rounds in which it replied, and its bytes up and down."""
        return self._tree("counts")

    def client_state(self, ids: Ints) -> ClientState:
        """Return the states of these clients `[K, ...]`."""
        self._allocate(ids)
        slots = self._slots_unless_all(ids)
        return ClientState(
            *(self._read(name, slots) for name in ("local_params", "state", "data_state"))
        )

    def commit(
        self, ids: Ints, client_state: ClientState, scores: Scores, accepted: Tensor
    ) -> None:
        """Write the new states, and scores if there are any, of the accepted clients.

        Args:
            ids: The cohort `[K]`.
            client_state: New states `[K, ...]`.
            scores: Scores of the round's evaluation `[K]`; empty without one.
            accepted: Booleans `[K]`.
        """
        trees = to_dict(client_state)
        if scores:
            trees["scores"] = scores
        self._scatter(ids, trees, accepted)

    def rows(self, ids: Ints, names: Container[str] = STORED_NAMES) -> State:
        """Return copies of the stored rows of these clients, for some names."""
        self._allocate(ids)
        slots = torch.from_numpy(self._slot[ids].astype(np.int64))
        return {name: rows.take(slots) for name, rows in self._tables.items() if name in names}

    def write(self, ids: Ints, trees: State) -> None:
        """Write the rows of these clients, such as those that another process had."""
        self._allocate(ids)
        self._scatter(ids, trees, torch.ones(len(ids), dtype=torch.bool))

    def count(self, ids: Ints, amounts: Params) -> None:
        """Add to the counts of these clients."""
        self._allocate(ids)
        sums = dict(self._read("counts", self._slots_unless_all(ids)))
        sums |= {name: sums[name] + number for name, number in amounts.items()}
        self._scatter(ids, {"counts": sums}, torch.ones(len(ids), dtype=torch.bool))

    def prefetch(self, ids: Ints) -> None:
        """Ask the system to read the rows of these clients: they are needed soon."""
        slots = self._slot[ids]
        known = torch.from_numpy(slots[slots >= 0].astype(np.int64))
        for rows in self._tables.values():
            rows.prefetch(known)

    def state_dict(self) -> State:
        """Return everything that a checkpoint needs."""
        trees = {name: rows.first(self._num_seen) for name, rows in self._tables.items()}
        return {"ids": torch.from_numpy(self.ids), "trees": trees}

    def load(self, state: State) -> None:
        """Restore what :meth:`state_dict` returned."""
        ids = state["ids"].numpy()
        self.reserve(len(ids))
        self.restore(ids, np.arange(len(ids)), state["trees"])
        self._changed[ids] = True

    def reserve(self, num_seen: int) -> None:
        """Prepare for `num_seen` clients that :meth:`restore` brings back."""
        self._num_seen = num_seen
        self._tables = {}

    def restore(self, ids: Ints, slots: Ints, trees: State) -> None:
        """Restore some of the clients of a checkpoint.

        Args:
            ids: The clients `[K]`.
            slots: The slots that they had `[K]`.
            trees: Their rows by table, stacked `[K, ...]`.
        """
        self._id[slots] = ids
        self._slot[ids] = slots
        self._scatter(ids, trees, torch.ones(len(ids), dtype=torch.bool))
        self._changed[ids] = False

    def slots(self, ids: Ints) -> Ints:
        """Return the slots of these clients."""
        return self._slot[ids].astype(np.int64)

    def changed_ids(self) -> Ints:
        """Return the clients that were written since `restore` or `forget_changes`."""
        return np.flatnonzero(self._changed)

    def forget_changes(self) -> None:
        """Mark all clients as unchanged."""
        self._changed[:] = False

    def _tree(self, name: str) -> State:
        """Return all rows of a table, valid until the next write; empty without the table."""
        return self._tables[name].view(self._num_seen) if name in self._tables else {}

    def _read(self, name: str, slots: Tensor | None) -> State:
        """Return the rows of a table in these slots; of all clients if None."""
        rows = self._tables[name]
        return rows.first(self._num_seen) if slots is None else rows.take(slots)

    def _scatter(self, ids: Ints, trees: State, keep: Tensor) -> None:
        """Write the rows for which `keep` holds.

        A table that is new has missing values (NaN) in the rows of all other clients.
        """
        keeps_all = bool(keep.all())
        fills_tables = keeps_all and self._slots_unless_all(ids) is None
        self._changed[ids] = True
        for name, tree in trees.items():
            if name not in self._tables:
                self._tables[name] = self._new_table(name, tree)
                if not fills_tables:
                    self._tables[name].fill_missing(0, self._num_seen)
            if fills_tables and self._tables[name].replace(tree):
                continue
            slots = torch.from_numpy(self.slots(ids))
            if keeps_all:
                self._tables[name].write(slots, tree)
            else:
                self._tables[name].write(slots[keep], index(tree, keep))

    def _slots_unless_all(self, ids: Ints) -> Tensor | None:
        """Return the slots of these clients; None if they are all stored clients in order."""
        slots = self._slot[ids]
        if len(slots) == self._num_seen and (slots == np.arange(len(slots))).all():
            return None
        return torch.from_numpy(slots.astype(np.int64))

    def _allocate(self, ids: Ints) -> None:
        """Give slots and initial states to those clients that have none."""
        new = ids[self._slot[ids] < 0]
        if not len(new):
            return
        first = self._num_seen
        self._num_seen = self._num_seen + len(new)
        slots = np.arange(first, self._num_seen)
        self._slot[new] = slots
        self._id[slots] = new
        counts = {
            name: torch.zeros(len(new), dtype=torch.int64) for name in ("rounds", "up", "down")
        }
        initial = {**to_dict(self._init_clients(torch.from_numpy(new))), "counts": counts}
        self._scatter(new, initial, torch.ones(len(new), dtype=torch.bool))
        for name in self._tables.keys() - initial.keys():
            self._tables[name].fill_missing(first, self._num_seen)

    def _new_table(self, name: str, like: State) -> ClientTable:
        """Create a table, within the budget unless it is always in memory."""
        budget = MemoryBudget() if name in IN_MEMORY_NAMES else self._budget
        return ClientTable(like, len(self._slot), budget)
