"""Executors run the client half of a method for a cohort.

`Loop` takes one client after another and is the oracle; `Stacked` computes all clients of a chunk
along a leading axis. Both give the same result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from equipoise.core import (
    ClientResult,
    ClientState,
    ClientUpdate,
    Method,
    Params,
    RngContext,
    Scores,
    ServerMessage,
    State,
    SupervisedTask,
    Task,
    TrainingConfig,
)
from equipoise.core.report_validation import shrink_update
from equipoise.records.rounds import LostRequest
from equipoise.records.scores import ClientFinalScores
from equipoise.simulation.aggregation_guard import SumRequest, UpdateDiagnostics, update_dots
from equipoise.simulation.client_runtime import ClientRuntime, over_clients, run_client_round
from equipoise.simulation.client_store import CLIENT_STATE_NAMES, ClientStore
from equipoise.utils import pytree
from equipoise.utils.pytree import Ints

MIN_STACKED_CLIENTS = 48  # smaller stacks lose more to call overhead than another core gains
MAX_CHUNKS = 64  # enough to share a round evenly, few enough that adding their sums is cheap
MAX_CLIENTS_PER_CHUNK = 1024  # bounds the memory of batch plans
MAX_JOINED_CLIENTS = 256  # larger stacks save only 5 % of W1 at 500 clients, and take more memory
CLIENT_HOOKS = {"configure_training", "train", "upload", "personal_model"}
"""Hooks in which a method may compute products whose bits depend on the number of clients."""


PendingScores = Callable[[], dict[str, Params]]
"""Scores of the server's model, by split."""


class CohortRequest(NamedTuple):
    """One round of a cohort, as an executor is asked to run it.

    Attributes:
        round: Round number.
        ids: The clients, `[K]`.
        message: What the server sends them.
        client_state: What they kept from earlier rounds, stacked `[K, ...]`.
        splits: Splits of their data on which their models are evaluated.
    """

    round: int
    ids: Tensor
    message: ServerMessage
    client_state: ClientState
    splits: tuple[str, ...]

    def subset(self, rows: int | slice | Tensor) -> CohortRequest:
        """Return the request of some clients, or of one (int) without the axis of clients."""
        return self._replace(
            ids=self.ids[rows],
            message=self.message.for_clients(rows),
            client_state=pytree.index(self.client_state, rows),
        )


@dataclass
class CohortResults:
    """Replies of the clients of a round, and the reasons why some did not reply."""

    arrived: Tensor
    """Rows of the clients that replied among those that were asked, `[R]`, ascending."""
    stack: ClientResult | None
    """Their replies, stacked `[R, ...]`; None if no client replied."""
    absent: dict[int, str] = field(default_factory=dict)
    """Reason by client, of those that did not reply."""
    unsent: frozenset[int] = frozenset()
    """Clients that could not be reached: no bytes are counted for them."""
    known_diagnostics: UpdateDiagnostics | None = None
    """Norms and validity of the replies, if they were computed with them."""
    upload_size: int | None = None
    """Bytes of one upload, if the uploads are not in `stack`."""
    committed: bool = False
    """Whether the new client states are in the store already."""

    def diagnostics(
        self, method: Method, message: ServerMessage, ids: Tensor, memory: dict[str, Any]
    ) -> UpdateDiagnostics:
        """Return the norms and the validity of the replies; see `UpdateDiagnostics.compute`."""
        assert self.stack is not None
        return self.known_diagnostics or UpdateDiagnostics.compute(
            method, message, ids, self.stack, memory
        )

    def upload_bytes(self) -> int:
        """Return the bytes of one upload."""
        if self.upload_size is not None:
            return self.upload_size
        return pytree.tree_bytes(self.stack.update, stacked=True) if self.stack else 0

    def commit(self, accepted: Tensor) -> None:
        """Keep the new states of accepted clients where another process holds them."""

    @classmethod
    def from_all_clients(cls, ids: Tensor, stack: ClientResult) -> CohortResults:
        """Return the results of a cohort of which all clients replied."""
        return cls(torch.arange(len(ids)), stack)

    def update_dots(self, global_params: Params, direction: Params, accepted: Tensor) -> Tensor:
        """Return the inner products of the accepted updates with a direction.

        Args:
            global_params: The model that the clients were sent.
            direction: A change of the model.
            accepted: Mask `[R]` of the accepted replies.

        Returns:
            Inner products `[K]` in double precision.
        """
        assert self.stack is not None
        return update_dots(global_params, self.stack.update.params, direction)[accepted]

    def partial_sums(self, request: SumRequest, chunks: list[slice]) -> State:
        """Compute the method's sums over the accepted replies, chunk by chunk of the cohort.

        Args:
            request: Which replies are summed, and how.
            chunks: The chunks of the cohort, as slices of the clients that were asked.

        Returns:
            The sums, as the method's `partial_sums` names them.
        """
        assert self.stack is not None
        if len(chunks) == 1:
            return add_chunk_sums([sum_chunk(request, self.stack.update)])
        chunk_ends = torch.tensor([chunk.stop for chunk in chunks])
        row_ends = torch.searchsorted(self.arrived, chunk_ends).tolist()
        num_accepted = [0, *request.accepted.cumsum(0).tolist()]  # before each row
        sums: list[State | None] = []
        for first, last in pairwise([0, *row_ends]):
            rows = slice(first, last)
            places = slice(num_accepted[first], num_accepted[last])  # among the accepted
            chunk_request = request._replace(
                accepted=request.accepted[rows],
                weights=pytree.index(request.weights, places),
                factors=None if request.factors is None else request.factors[places],
            )
            updates = pytree.index(self.stack.update, chunk_index(rows))
            sums.append(sum_chunk(chunk_request, updates))
        return add_chunk_sums(sums)


class Executor(ABC):
    """Run the client half of a method for a cohort."""

    min_replies: int = 1
    """With fewer usable replies the round leaves the global model as it is."""
    keeps_models: bool = True
    """Whether client states are stored by this program; clients of Flower store their own."""

    processes: int = 1
    """Number of processes; each stores the states of its own clients."""

    def __init__(
        self, method: Method, task: Task, training: TrainingConfig, seed: int, rounds: int
    ) -> None:
        """Create the executor.

        Args:
            method: Method of the run.
            task: Task of the run.
            training: Settings of local training.
            seed: Seed of the run.
            rounds: Number of rounds of the run.
        """
        self.method = method
        self.task = task
        self.training = training
        self.seed = seed
        self.rounds = rounds
        self.memory: dict[str, Any] = {}
        """What checks of updates remember, see `Method.check_updates`."""

    def chunks(self, clients: int) -> list[slice]:
        """Split a cohort into chunks; single clients where stacking is not worthwhile."""
        return split_into_chunks(
            clients, 1 if self.task.info.executor_depends_on_model else MIN_STACKED_CLIENTS
        )

    @abstractmethod
    def run_clients(self, request: CohortRequest) -> CohortResults:
        """Run one round of these clients; results hold their states after the round."""

    def init_state(self, ids: Tensor, initial: Params, keeps_local: bool) -> ClientState:
        """Return the states of clients before their first round; see `init_client_states`.

        Args:
            ids: The clients `[K]`.
            initial: The initial model.
            keeps_local: Whether each client holds a copy of it.

        Returns:
            The states, stacked `[K, ...]`.
        """
        return init_client_states(self.method, self.task, ids, initial, keeps_local)

    def prefetch(self, ids: Ints) -> None:  # noqa: B027 (there is nothing to do where nothing is on disk)
        """Read ahead the states of clients that are likely to be asked in the next round."""

    def evaluate_global(self, params: Params, splits: tuple[str, ...]) -> PendingScores:
        """Start to evaluate the global model on the server's sets; call the result for scores."""
        return lambda: evaluate_on_server(self.task, params, splits)

    def gather_state(self, ids: Ints, names: tuple[str, ...] = CLIENT_STATE_NAMES) -> State:
        """Return client states that are not in the simulation's own store."""
        return {}

    def restore_state(self, ids: Ints, trees: State) -> State:
        """Take client states from a checkpoint; return those that the simulation's store keeps."""
        return trees

    def final_scores(
        self, ids: Ints, params: Params, rounds: int
    ) -> Mapping[int, ClientFinalScores]:
        """Ask clients for the scores of the models that they keep, where these are not known here.

        Args:
            ids: Client ids.
            params: The final global model; empty if there is none.
            rounds: Rounds of the run.

        Returns:
            Scores by client.
        """
        return {}

    def lost_requests(self, rounds_done: int) -> list[LostRequest]:
        """Return the requests of later rounds that were sent before this process started."""
        return []

    def run_client(self, request: CohortRequest) -> ClientResult:
        """Run one client; the request has its values without the axis of clients."""
        round = request.round
        training = self.training.at(round, self.rounds)
        client = ClientRuntime(
            self.task,
            training,
            RngContext(self.seed, round, training),
            self.rounds,
            request.ids,
            request.message,
            request.client_state,
        )
        return run_client_round(self.method.at(round, self.rounds), client, request.splits)


class InProcessExecutor(Executor):
    """Run clients in this process, chunk by chunk."""

    @abstractmethod
    def run_chunk(self, request: CohortRequest) -> ClientResult:
        """Run the clients of one chunk; nothing outside the chunk affects their replies."""

    def groups(self, ids: Tensor, message: ServerMessage) -> list[list[slice]]:
        """Return the chunks of these clients, in groups that are computed as one stack."""
        return [[chunk] for chunk in self.chunks(len(ids))]

    def run_group(self, request: CohortRequest, chunks: list[slice]) -> ClientResult:
        """Run the chunks of these clients, with the bits of one chunk after another."""
        if len(chunks) == 1:
            return self.run_chunk(request)
        results = (self.run_chunk(request.subset(chunk_index(chunk))) for chunk in chunks)
        return pytree.concat_stream(results, len(request.ids))

    def run_clients(self, request: CohortRequest) -> CohortResults:
        """Run the groups of chunks one after another."""
        ids = request.ids
        with torch.no_grad():
            groups = self.groups(ids, request.message)
            if len(groups) == 1:
                return CohortResults.from_all_clients(ids, self.run_group(request, groups[0]))
            results = (
                self.run_group(request.subset(group_index(group)), relative_to_first(group))
                for group in groups
            )
            return CohortResults.from_all_clients(ids, pytree.concat_stream(results, len(ids)))


class Loop(InProcessExecutor):
    """Run one client after another: the reference for the other executors."""

    def run_chunk(self, request: CohortRequest) -> ClientResult:
        """Run the clients of a chunk."""
        return pytree.stack([self.run_client(request.subset(k)) for k in range(len(request.ids))])


class Stacked(InProcessExecutor):
    """Compute all clients of a chunk at once, or several chunks where the bits stay the same."""

    def __init__(
        self, method: Method, task: Task, training: TrainingConfig, seed: int, rounds: int
    ) -> None:
        """Create the executor; see `Executor`."""
        super().__init__(method, task, training, seed, rounds)
        self._can_join: dict[object, bool] = {}
        """Whether chunks can be one stack, known after the first round of the same shapes."""

    def chunks(self, clients: int) -> list[slice]:
        """Split a cohort into chunks that are worth stacking."""
        return split_into_chunks(clients, MIN_STACKED_CLIENTS)

    def groups(self, ids: Tensor, message: ServerMessage) -> list[list[slice]]:
        """Join chunks where clients have equal shapes and the method adds no products."""
        chunks = self.chunks(len(ids))
        if (
            len(chunks) > 1
            and message.hparams is None
            and not CLIENT_HOOKS & self.method.overridden_hooks
            and len(ids) == self.task.info.num_clients
            and self._clients_are_alike
        ):
            return group_chunks(chunks)
        return [[chunk] for chunk in chunks]

    def run_group(self, request: CohortRequest, chunks: list[slice]) -> ClientResult:
        """Compute chunks as one stack if that gives the same bits, which the first round tests.

        Matrix products round differently at another alignment in memory (modulo 16 bytes), so that
        a client's bits depend on its place in a stack. Where all clients take part with equal
        numbers of rows and epochs, only the shapes matter: one round decides for all.
        """
        if len(chunks) == 1:
            return self.run_chunk(request)
        # Momentum has products of other shapes.
        has_momentum = bool(self.training.at(request.round, self.rounds).momentum)
        key = (int(request.ids[0]), len(request.ids), request.splits, has_momentum)
        if self._can_join.get(key):
            return self.run_chunk(request)
        separate = super().run_group(request, chunks)
        if key not in self._can_join:
            joined = self.run_chunk(request)
            pairs = zip(pytree.leaves(separate), pytree.leaves(joined), strict=True)
            self._can_join[key] = all(torch.equal(one, other) for one, other in pairs)
        return separate

    def run_chunk(self, request: CohortRequest) -> ClientResult:
        """Run the clients of a chunk."""

        def run_one(id: Tensor, message: ServerMessage, client_state: ClientState) -> ClientResult:
            return self.run_client(
                request._replace(ids=id, message=message, client_state=client_state)
            )

        axes = (0, request.message.vmap_axes(), 0)
        arguments = (request.ids, request.message, request.client_state)
        return over_clients(run_one, axes, arguments, len(request.ids))

    @cached_property
    def _clients_are_alike(self) -> bool:
        """Whether all clients have equal numbers of rows, and so equal shapes."""
        task = self.task
        if (
            not isinstance(task, SupervisedTask)
            or task.info.executor_depends_on_model
            or not task.info.stackable
        ):
            return False
        all_ids = torch.arange(task.info.num_clients)
        counts = [
            task.num_rows(all_ids, split)
            for split in ("train", "val", "test")
            if task.has_split(split)
        ]
        return all(bool((count == count[0]).all()) for count in counts)


def evaluate_on_server(task: Task, params: Params, splits: tuple[str, ...]) -> dict[str, Params]:
    """Evaluate one model on the server's own sets.

    Args:
        task: Task of the run.
        params: The model.
        splits: `test` (the server's test set), `val` (its public set), both or none.

    Returns:
        Scalar metrics by split.
    """
    stack = {name: value.unsqueeze(0) for name, value in params.items()}
    server_splits = {"test": "test", "val": "public"}
    with torch.no_grad():
        return {
            split: pytree.index(task.evaluate_server(stack, server_splits[split]), 0)
            for split in splits
        }


def init_client_states(
    method: Method, task: Task, ids: Tensor, initial: Params, keeps_local: bool
) -> ClientState:
    """Return the states of clients before their first round.

    Args:
        method: Method of the run.
        task: Task of the run.
        ids: The clients `[K]`.
        initial: The initial model.
        keeps_local: Whether each client holds a copy of it.

    Returns:
        The states, stacked `[K, ...]`.
    """

    def repeat(tree: State) -> State:
        copies: State = pytree.map_leaves(
            lambda value: value.expand(len(ids), *value.shape).clone(), tree
        )
        return copies

    local_params = repeat(initial) if keeps_local else {}
    state = repeat(method.init_client(task, initial))
    return ClientState(local_params, state, task.init_data_state(ids))


def run_and_commit(
    executor: InProcessExecutor, store: ClientStore, request: CohortRequest
) -> CohortResults:
    """Run clients that upload nothing, and store the new states of each group at once.

    Only the models of one group are in memory at a time, besides those in the store.

    Args:
        executor: Executor of the clients.
        store: Their states.
        request: What they are asked; their states are read from the store.

    Returns:
        The results, without states and scores.
    """
    method = executor.method.at(request.round, executor.rounds)
    diagnostics: list[UpdateDiagnostics] = []

    def run_group(chunks: list[slice]) -> ClientResult:
        rows = group_index(chunks)
        ids = request.ids[rows]
        group_request = request._replace(
            ids=ids,
            message=request.message.for_clients(rows),
            client_state=store.client_state(ids.numpy()),
        )
        result = executor.run_group(group_request, relative_to_first(chunks))
        group_diagnostics = UpdateDiagnostics.compute(
            method, request.message, ids, result, executor.memory
        )
        store.commit(ids.numpy(), result.client_state, result.scores, group_diagnostics.is_finite)
        diagnostics.append(group_diagnostics)
        return replace(result, client_state=ClientState(), scores={})

    with torch.no_grad():
        groups = executor.groups(request.ids, request.message)
        stack = pytree.concat_stream(map(run_group, groups), len(request.ids))
    results = CohortResults.from_all_clients(request.ids, stack)
    known = UpdateDiagnostics.concatenate(diagnostics)
    return replace(results, known_diagnostics=known, committed=True)


@dataclass
class StartGroup:
    """Clients that started from one model, with their new states and their rows in the replies."""

    ids: Ints
    client_state: ClientState
    scores: Scores
    rows: Tensor


@dataclass
class RoundReplies:
    """The replies that the server has when the round ends, by client, ascending."""

    ids: Ints
    results: CohortResults
    """Their results; late updates are rebased on the present global model."""
    arrived: Tensor
    """Mask `[R]`; the others were computed but came too late."""
    cohort_size: int
    """Number of clients of the cohort, which decides the chunks of sums."""
    start_groups: list[StartGroup]
    absent: dict[int, str] = field(default_factory=dict)
    joules: float | None = None
    seconds: Tensor | None = None
    """Simulated seconds of each client, `[R]`."""
    staleness: Tensor | None = None
    """Rounds between start and arrival of each reply, `[R]`; None if all are of this round."""

    @classmethod
    def from_results(cls, ids: Ints, results: CohortResults) -> RoundReplies:
        """Return the replies of a round without a clock."""
        arrived_ids = ids[results.arrived.numpy()]
        return cls(
            arrived_ids,
            results,
            torch.ones(len(arrived_ids), dtype=torch.bool),
            len(ids),
            _one_start_group(arrived_ids, results),
            dict(results.absent),
        )


def _one_start_group(ids: Ints, results: CohortResults) -> list[StartGroup]:
    """Return the clients of a round without a clock as one group; none if they are stored."""
    stack = results.stack
    if stack is None or results.committed:
        return []
    return [StartGroup(ids, stack.client_state, stack.scores, torch.arange(len(ids)))]


@runtime_checkable
class AsyncExecutor(Protocol):
    """An executor whose clients may reply in a later round than the one that asked them."""

    @property
    def in_flight_ids(self) -> Ints:
        """Clients of earlier rounds that may still reply: they cannot be asked now."""

    def collect(self, round: int, params: Params) -> RoundReplies:
        """Wait for the end of the round; return the replies for a server with model `params`."""


# --- chunks of a cohort --------------------------------------------------------------------------
# Floating-point sums depend on the order of their terms, so that the order must not depend on which
# process computes which client: first the clients of a chunk are summed, then the sums of the
# chunks one after another.


def split_into_chunks(clients: int, min_clients: int) -> list[slice]:
    """Split a cohort into chunks of nearly equal size.

    Args:
        clients: The number of clients.
        min_clients: The fewest clients of a chunk, where there are enough. If above 1, the number
            of chunks is a power of two, so that usual numbers of processes get equal parts.

    Returns:
        The chunks as consecutive slices of the cohort.
    """
    parts = max(1, min(MAX_CHUNKS, clients // min_clients))
    if min_clients > 1:
        parts = 1 << (parts.bit_length() - 1)
    parts = max(parts, -(-clients // MAX_CLIENTS_PER_CHUNK))
    return [slice(clients * part // parts, clients * (part + 1) // parts) for part in range(parts)]


def group_chunks(chunks: list[slice]) -> list[list[slice]]:
    """Group neighbouring chunks into stacks of at most `MAX_JOINED_CLIENTS` clients."""
    groups: list[list[slice]] = []
    for chunk in chunks:
        if groups and chunk.stop - groups[-1][0].start <= MAX_JOINED_CLIENTS:
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return groups


def relative_to_first(chunks: list[slice]) -> list[slice]:
    """Return the chunks of a group as slices of the group's own stack."""
    first = chunks[0].start
    return [slice(chunk.start - first, chunk.stop - first) for chunk in chunks]


def group_index(chunks: list[slice]) -> slice | Tensor:
    """Return `chunk_index` of a group of neighbouring chunks."""
    return chunk_index(slice(chunks[0].start, chunks[-1].stop))


def chunk_index(chunk: slice) -> slice | Tensor:
    """Return an index that copies a chunk's rows unless they are the first of the stack.

    Matrix products may round differently at another alignment in memory.
    """
    return chunk if chunk.start == 0 else torch.arange(chunk.start, chunk.stop)


def sum_chunk(request: SumRequest, updates: ClientUpdate) -> State | None:
    """Compute the method's partial sums over one chunk.

    Args:
        request: The sums, with mask, weights and factors of this chunk alone.
        updates: The updates of the chunk, stacked `[K, ...]`.

    Returns:
        The sums; None if no update is accepted.
    """
    accepted = request.accepted
    if not bool(accepted.any()):
        return None
    if not bool(accepted.all()):
        updates = pytree.index(updates, accepted)
    if request.factors is not None:
        updates = shrink_update(updates, request.global_params, request.factors)
    contiguous: ClientUpdate = pytree.map_leaves(lambda value: value.contiguous(), updates)
    return request.method.partial_sums(request.global_params, contiguous, request.weights)


def add_chunk_sums(parts: list[State | None]) -> State:
    """Add the sums of chunks in their order."""
    total, *others = [part for part in parts if part is not None]
    for part in others:
        total = pytree.map_leaves(lambda a, b: a + b, total, part)
    return total
