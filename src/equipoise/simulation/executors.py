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
from equipoise.core.method import weights_by_num_examples
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

    def part(self, rows: int | slice | Tensor) -> CohortRequest:
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
    known_weights: Tensor = field(default_factory=lambda: torch.empty(0))
    """Weights of the sums that came with the replies; empty if none came."""

    def sums_are_known(self, request: SumRequest) -> bool:
        """Return whether these are the sums that came with the replies."""
        return (
            request.factors is None
            and bool(request.accepted.all())
            and isinstance(request.weights, Tensor)
            and torch.equal(request.weights, self.known_weights)
        )

    def diagnostics(
        self, method: Method, message: ServerMessage, ids: Tensor, memory: dict[str, Any]
    ) -> UpdateDiagnostics:
        """Return the norms and the validity of the replies."""
        assert self.stack is not None
        return self.known_diagnostics or UpdateDiagnostics.compute(
            method, message, ids, self.stack, memory
        )

    def upload_bytes(self) -> int:
        """Return the bytes of one upload."""
        if self.upload_size is not None:
            return self.upload_size
        return pytree.tree_bytes(self.stack.update, stacked=True) if self.stack else 0

    def commit(self, taken: Tensor) -> None:
        """Keep the new states of accepted clients where another process holds them."""

    @classmethod
    def from_all_clients(cls, ids: Tensor, stack: ClientResult) -> CohortResults:
        """Return the results of a cohort of which all clients replied."""
        return cls(torch.arange(len(ids)), stack)

    def update_dots(self, global_params: Params, direction: Params, taken: Tensor) -> Tensor:
        """Return the inner products `[K]` of the taken updates with a direction."""
        assert self.stack is not None
        return update_dots(global_params, self.stack.update.params, direction)[taken]

    def partial_sums(self, request: SumRequest, chunks: list[slice]) -> State:
        """Compute the method's sums over the accepted replies, chunk by chunk of the cohort.

        Args:
            request: Which replies are summed, and how.
            chunks: The chunks of the cohort, as slices of the clients that were asked.
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
            own = slice(num_accepted[first], num_accepted[last])
            of_chunk = request._replace(
                accepted=request.accepted[rows],
                weights=pytree.index(request.weights, own),
                factors=None if request.factors is None else request.factors[own],
            )
            sums.append(sum_chunk(of_chunk, pytree.index(self.stack.update, chunk_index(rows))))
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
        """Return the stacked states of clients before their first round."""
        return init_client_states(self.method, self.task, ids, initial, keeps_local)

    def known_weights(self, method: Method, ids: Tensor) -> Tensor:
        """Return the weights of all clients if they do not depend on replies; else empty."""
        known = (
            method.capabilities.aggregates_by_sum
            and not {"aggregation_weights", "partial_sums"} & method.overridden_hooks
        )
        return weights_by_num_examples(self.task, ids) if known else torch.empty(0)

    def prefetch(self, ids: Ints) -> None:  # noqa: B027 (there is nothing to do where nothing is on disk)
        """Read ahead the states of clients that are likely to be asked in the next round."""

    def evaluate_global(self, params: Params, splits: tuple[str, ...]) -> PendingScores:
        """Start to evaluate the global model on the server's sets; call the result for scores."""
        return lambda: evaluate_on_server(self.task, params, splits)

    def gather_state(self, ids: Ints, names: tuple[str, ...] = CLIENT_STATE_NAMES) -> State:
        """Return client states that are not in the simulation's own store."""
        return {}

    def restore_state(self, ids: Ints, kept: State) -> State:
        """Take client states from a checkpoint; return those that the simulation's store keeps."""
        return kept

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
        results = (self.run_chunk(request.part(chunk_index(chunk))) for chunk in chunks)
        return pytree.concat_stream(results, len(request.ids))

    def run_clients(self, request: CohortRequest) -> CohortResults:
        """Run the groups of chunks one after another."""
        ids = request.ids
        with torch.no_grad():
            groups = self.groups(ids, request.message)
            if len(groups) == 1:
                return CohortResults.from_all_clients(ids, self.run_group(request, groups[0]))
            results = (
                self.run_group(request.part(group_index(group)), relative_to_first(group))
                for group in groups
            )
            return CohortResults.from_all_clients(ids, pytree.concat_stream(results, len(ids)))


class Loop(InProcessExecutor):
    """Run one client after another: the reference for the other executors."""

    def run_chunk(self, request: CohortRequest) -> ClientResult:
        """Run the clients of a chunk."""
        return pytree.stack([self.run_client(request.part(k)) for k in range(len(request.ids))])


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
        cuts = self.chunks(len(ids))
        simple = message.hparams is None and not CLIENT_HOOKS & self.method.overridden_hooks
        if (
            len(cuts) > 1
            and simple
            and len(ids) == self.task.info.num_clients
            and self._clients_are_alike
        ):
            return group_chunks(cuts)
        return [[chunk] for chunk in cuts]

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
        everybody = torch.arange(task.info.num_clients)
        counts = [
            task.num_rows(everybody, split)
            for split in ("train", "val", "test")
            if task.has_split(split)
        ]
        return all(bool((count == count[0]).all()) for count in counts)


def evaluate_on_server(task: Task, params: Params, splits: tuple[str, ...]) -> dict[str, Params]:
    """Return scores of one model on the server's test and validation (public) sets."""
    one = {name: value.unsqueeze(0) for name, value in params.items()}
    sets = {"test": "test", "val": "public"}
    with torch.no_grad():
        return {split: pytree.index(task.evaluate_server(one, sets[split]), 0) for split in splits}


def init_client_states(
    method: Method, task: Task, ids: Tensor, initial: Params, keeps_local: bool
) -> ClientState:
    """Return the stacked states of clients before their first round."""

    def spread(tree: State) -> State:
        copies: State = pytree.map_leaves(
            lambda value: value.expand(len(ids), *value.shape).clone(), tree
        )
        return copies

    local = spread(initial) if keeps_local else {}
    return ClientState(local, spread(method.init_client(task, initial)), task.init_data_state(ids))


class ChunkedRound:
    """Run a round chunk by chunk, and drop each chunk's uploads once they are summed."""

    def __init__(self, executor: InProcessExecutor, store: ClientStore, keeps_local: bool) -> None:
        """Prepare a round in chunks.

        Args:
            executor: Executor of the clients.
            store: State of the clients.
            keeps_local: Whether clients keep their trained models.
        """
        self.executor = executor
        self.store = store
        self.keeps_local = keeps_local
        self._sums_early = not keeps_local

    def run(
        self, round: int, ids: Tensor, message: ServerMessage, splits: tuple[str, ...]
    ) -> CohortResults:
        """Run these clients, whose states are in the store."""
        executor = self.executor
        method = executor.method.at(round, executor.rounds)
        groups = executor.groups(ids, message)
        weights = executor.known_weights(method, ids) if self._sums_early else torch.empty(0)
        commits_early = not (
            method.shared_param_names(executor.task)
            or method.report_ranges
            or "upload" in method.overridden_hooks
        )
        if len(groups) == 1 or not (commits_early or len(weights)):
            return self._run_all_at_once(round, ids, message, splits)
        diagnostics: list[UpdateDiagnostics] = []
        sums: list[State | None] = []
        upload_size = 0

        def run_group(chunks: list[slice]) -> ClientResult:
            """Run a group of chunks; return the results without what is no longer needed."""
            nonlocal upload_size
            rows = group_index(chunks)
            own = ids[rows].numpy()
            held = self.store.client_state(own)
            request = CohortRequest(round, ids[rows], message.for_clients(rows), held, splits)
            inner = relative_to_first(chunks)
            part = executor.run_group(request, inner)
            diagnostics.append(
                UpdateDiagnostics.compute(method, message, ids[rows], part, executor.memory)
            )
            upload_size = pytree.tree_bytes(part.update, stacked=True)
            if commits_early:
                is_finite = diagnostics[-1].is_finite
                self.store.commit(own, part.client_state, part.scores, is_finite)
                return replace(part, client_state=ClientState(), scores={})
            for chunk, in_group in zip(chunks, inner, strict=True):
                everybody = torch.ones(chunk.stop - chunk.start, dtype=torch.bool)
                request_sum = SumRequest(method, message.params, everybody, weights[chunk])
                sums.append(
                    sum_chunk(request_sum, pytree.index(part.update, chunk_index(in_group)))
                )
            return replace(
                part,
                update=ClientUpdate({}, metrics=part.update.metrics),
                client_state=replace(part.client_state, local_params={}),
            )

        with torch.no_grad():
            stack = pytree.concat_stream(map(run_group, groups), len(ids))
        everybody = torch.arange(len(ids))
        known = UpdateDiagnostics.concatenate(diagnostics)
        if commits_early:
            return CohortResults(everybody, stack, known_diagnostics=known, committed=True)

        def recompute_uploads() -> ClientUpdate:
            # A client that is left out once may be left out in every round.
            self._sums_early = False
            stack = self._run_all_at_once(round, ids, message, ()).stack
            assert stack is not None
            return stack.update

        return SummedCohortResults(
            everybody,
            stack,
            known_diagnostics=known,
            upload_size=upload_size,
            chunk_sums=sums,
            known_weights=weights,
            recompute_uploads=recompute_uploads,
        )

    def _run_all_at_once(
        self, round: int, ids: Tensor, message: ServerMessage, splits: tuple[str, ...]
    ) -> CohortResults:
        held = self.store.client_state(ids.numpy())
        return self.executor.run_clients(CohortRequest(round, ids, message, held, splits))


@dataclass
class SummedCohortResults(CohortResults):
    """Replies whose uploads were summed and dropped, to save memory."""

    chunk_sums: list[State | None] = field(default_factory=list)
    """Sums over all clients of each chunk, by `known_weights`."""
    recompute_uploads: Callable[[], ClientUpdate] = lambda: ClientUpdate({})
    """Computes the uploads once more."""
    _has_uploads: bool = False

    def partial_sums(self, request: SumRequest, chunks: list[slice]) -> State:
        """Return the known sums, or recompute the uploads if other replies are summed."""
        if self.sums_are_known(request):
            return add_chunk_sums(self.chunk_sums)
        self._recover_uploads()
        return super().partial_sums(request, chunks)

    def update_dots(self, global_params: Params, direction: Params, taken: Tensor) -> Tensor:
        """Recompute the uploads, and return their inner products with a direction."""
        self._recover_uploads()
        return super().update_dots(global_params, direction, taken)

    def _recover_uploads(self) -> None:
        if self._has_uploads:
            return
        assert self.stack is not None
        self.stack = replace(self.stack, update=self.recompute_uploads())
        self._has_uploads = True


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
    def from_results(cls, ids: Ints, replies: CohortResults) -> RoundReplies:
        """Return the replies of a round without a clock."""
        here = ids[replies.arrived.numpy()]
        in_time = torch.ones(len(here), dtype=torch.bool)
        return cls(
            here, replies, in_time, len(ids), _one_start_group(here, replies), dict(replies.absent)
        )


def _one_start_group(ids: Ints, replies: CohortResults) -> list[StartGroup]:
    if replies.stack is None or replies.committed:
        return []
    return [
        StartGroup(ids, replies.stack.client_state, replies.stack.scores, torch.arange(len(ids)))
    ]


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


def group_chunks(cuts: list[slice]) -> list[list[slice]]:
    """Group neighbouring chunks into stacks of at most `MAX_JOINED_CLIENTS` clients."""
    found: list[list[slice]] = []
    for chunk in cuts:
        if found and chunk.stop - found[-1][0].start <= MAX_JOINED_CLIENTS:
            found[-1].append(chunk)
        else:
            found.append([chunk])
    return found


def relative_to_first(cuts: list[slice]) -> list[slice]:
    """Return the chunks of a group as slices of the group's own stack."""
    first = cuts[0].start
    return [slice(chunk.start - first, chunk.stop - first) for chunk in cuts]


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
