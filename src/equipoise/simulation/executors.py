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
from typing import Protocol, runtime_checkable

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
from equipoise.simulation.aggregation_guard import UpdateDiagnostics, update_dots
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


@dataclass
class CohortResults:
    """What came back of a round, and why some of it did not."""

    arrived: Tensor
    """Places of the clients that replied among those that were asked, ascending."""
    stack: ClientResult | None
    """Their replies, stacked ``[R, ...]``; ``None`` if nobody replied."""
    absent: dict[int, str] = field(default_factory=dict)
    unsent: frozenset[int] = frozenset()
    """Clients that could not be reached at all: they are not billed."""
    known_diagnostics: UpdateDiagnostics | None = None
    """Their facts, where those are known already."""
    upload_size: int | None = None
    """Bytes of one upload, where uploads are not in the stack."""
    committed: bool = False
    """Whether what clients hold is kept already."""
    known_weights: Tensor = field(default_factory=lambda: torch.empty(0))
    """Those by which sums over all clients are known already, if any are."""

    def weights_known(
        self, taken: Tensor, weights: Tensor | Params, factors: Tensor | None
    ) -> bool:
        """Whether these are the sums that are known already."""
        return (
            factors is None
            and bool(taken.all())
            and isinstance(weights, Tensor)
            and torch.equal(weights, self.known_weights)
        )

    def diagnostics(self, method: Method, global_params: Params) -> UpdateDiagnostics:
        """What decides which of them are used."""
        assert self.stack is not None
        return self.known_diagnostics or UpdateDiagnostics.compute(
            method, global_params, self.stack
        )

    def upload_bytes(self) -> int:
        """Bytes of one upload."""
        if self.upload_size is not None:
            return self.upload_size
        return pytree.tree_bytes(self.stack.update, stacked=True) if self.stack else 0

    def commit(self, taken: Tensor) -> None:
        """Tell where clients are whose reply counted: the others keep what they held."""

    @classmethod
    def from_all_clients(cls, ids: Tensor, stack: ClientResult) -> CohortResults:
        """Everybody replied."""
        return cls(torch.arange(len(ids)), stack)

    def update_dots(self, global_params: Params, direction: Params, taken: Tensor) -> Tensor:
        """Return the inner products `[K]` of the taken updates with a direction."""
        assert self.stack is not None
        return update_dots(global_params, self.stack.update.params, direction)[taken]

    def partial_sums(
        self,
        method: Method,
        global_params: Params,
        cuts: list[slice],
        taken: Tensor,
        weights: Tensor | Params,
        factors: Tensor | None = None,
    ) -> State:
        """Compute the method's sums over the taken replies, chunk by chunk of the cohort."""
        assert self.stack is not None
        if len(cuts) == 1:
            return add_chunk_sums(
                [sum_chunk(method, global_params, self.stack.update, taken, weights, factors)]
            )
        parts: list[State | None] = []
        ends = torch.searchsorted(
            self.arrived, torch.tensor([chunk.stop for chunk in cuts])
        ).tolist()
        counts = torch.cat(
            [torch.zeros(1, dtype=torch.int64), taken.cumsum(0)]
        ).tolist()  # taken before each row
        for first, last in pairwise([0, *ends]):
            here = slice(first, last)
            counted = slice(counts[first], counts[last])
            own = pytree.index(weights, counted)
            parts.append(
                sum_chunk(
                    method,
                    global_params,
                    pytree.index(self.stack.update, chunk_index(here)),
                    taken[here],
                    own,
                    None if factors is None else factors[counted],
                )
            )
        return add_chunk_sums(parts)


class Executor(ABC):
    """Runs the client half of a method for a cohort."""

    min_replies: int = 1
    """Usable replies below which the round changes nothing."""
    keeps_models: bool = True
    """Whether what clients hold is kept here; else they keep it themselves, elsewhere."""

    processes: int = 1
    """How many compute clients, where each keeps what its clients hold."""

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

    def chunks(self, clients: int) -> list[slice]:
        """Split a cohort into chunks; single clients where stacking is not worthwhile."""
        return split_into_chunks(
            clients, 1 if self.task.info.executor_depends_on_model else MIN_STACKED_CLIENTS
        )

    @abstractmethod
    def run_clients(
        self,
        round: int,
        ids: Tensor,
        message: ServerMessage,
        client_state: ClientState,
        splits: tuple[str, ...],
    ) -> CohortResults:
        """Run one round of these clients; results hold their states after the round."""

    def init_state(self, ids: Tensor, initial: Params, keeps_local: bool) -> ClientState:
        """Stacks of what is kept of clients that never took part."""
        return init_client_states(self.method, self.task, ids, initial, keeps_local)

    def known_weights(self, method: Method, ids: Tensor) -> Tensor:
        """The weights of all these clients, if no reply is needed to know them; else empty."""
        known = (
            method.capabilities.aggregates_by_sum
            and not {"aggregation_weights", "partial_sums"} & method.overridden_hooks
        )
        return weights_by_num_examples(self.task, ids) if known else torch.empty(0)

    def prefetch(self, ids: Ints) -> None:  # noqa: B027 (there is nothing to do where nothing is on disk)
        """These clients are likely to be asked in the round after the next :meth:`run`."""

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

    def run_client(
        self,
        round: int,
        splits: tuple[str, ...],
        id: Tensor,
        message: ServerMessage,
        client_state: ClientState,
    ) -> ClientResult:
        """One client's round."""
        method = self.method.at(round, self.rounds)
        training = self.training.at(round, self.rounds)
        client = ClientRuntime(
            self.task,
            training,
            RngContext(self.seed, round, training),
            self.rounds,
            id,
            message,
            client_state,
        )
        return run_client_round(method, client, splits)


class InProcessExecutor(Executor):
    """In this process, chunk by chunk."""

    @abstractmethod
    def run_chunk(
        self,
        round: int,
        ids: Tensor,
        message: ServerMessage,
        client_state: ClientState,
        splits: tuple[str, ...],
    ) -> ClientResult:
        """The replies of one chunk: what they are depends on nobody outside it."""

    def groups(self, ids: Tensor, message: ServerMessage) -> list[list[slice]]:
        """The chunks of these clients, by the stacks that are in memory together."""
        return [[chunk] for chunk in self.chunks(len(ids))]

    def group(
        self,
        round: int,
        ids: Tensor,
        message: ServerMessage,
        client_state: ClientState,
        splits: tuple[str, ...],
        cuts: list[slice],
    ) -> ClientResult:
        """Run the chunks `cuts` of these clients, with the bits of one chunk after another."""
        if len(cuts) == 1:
            return self.run_chunk(round, ids, message, client_state, splits)
        parts = (
            self.run_chunk(
                round,
                ids[here],
                message.for_clients(here),
                pytree.index(client_state, here),
                splits,
            )
            for here in map(chunk_index, cuts)
        )
        return pytree.concat_stream(parts, len(ids))

    def run_clients(
        self,
        round: int,
        ids: Tensor,
        message: ServerMessage,
        client_state: ClientState,
        splits: tuple[str, ...],
    ) -> CohortResults:
        """Run the groups of chunks one after another."""
        with torch.no_grad():
            groups = self.groups(ids, message)
            if len(groups) == 1:
                return CohortResults.from_all_clients(
                    ids, self.group(round, ids, message, client_state, splits, groups[0])
                )

            def replies(cuts: list[slice]) -> ClientResult:
                here = chunk_index(slice(cuts[0].start, cuts[-1].stop))
                own = pytree.index(client_state, here)
                return self.group(
                    round,
                    ids[here],
                    message.for_clients(here),
                    own,
                    splits,
                    relative_to_first(cuts),
                )

            return CohortResults.from_all_clients(
                ids, pytree.concat_stream(map(replies, groups), len(ids))
            )


class Loop(InProcessExecutor):
    """One client after another: obvious, the oracle of the others."""

    def run_chunk(
        self,
        round: int,
        ids: Tensor,
        message: ServerMessage,
        client_state: ClientState,
        splits: tuple[str, ...],
    ) -> ClientResult:
        """Run the clients of a chunk."""
        each = range(len(ids))
        return pytree.stack(
            [
                self.run_client(
                    round, splits, ids[k], message.for_clients(k), pytree.index(client_state, k)
                )
                for k in each
            ]
        )


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

    def group(
        self,
        round: int,
        ids: Tensor,
        message: ServerMessage,
        client_state: ClientState,
        splits: tuple[str, ...],
        cuts: list[slice],
    ) -> ClientResult:
        """Compute chunks as one stack if that gives the same bits, which the first round tests.

        Matrix products round differently at another alignment in memory (modulo 16 bytes), so that
        a client's bits depend on its place in a stack. Where all clients take part with equal
        numbers of rows and epochs, only the shapes matter: one round decides for all.
        """
        if len(cuts) == 1:
            return self.run_chunk(round, ids, message, client_state, splits)
        moving = bool(
            self.training.at(round, self.rounds).momentum
        )  # momentum has products of other shapes
        key = (int(ids[0]), len(ids), splits, moving)
        if self._can_join.get(key):
            return self.run_chunk(round, ids, message, client_state, splits)
        separate = super().group(round, ids, message, client_state, splits, cuts)
        if key not in self._can_join:
            joined = self.run_chunk(round, ids, message, client_state, splits)
            pairs = zip(pytree.leaves(separate), pytree.leaves(joined), strict=True)
            self._can_join[key] = all(torch.equal(one, other) for one, other in pairs)
        return separate

    def run_chunk(
        self,
        round: int,
        ids: Tensor,
        down: ServerMessage,
        held: ClientState,
        splits: tuple[str, ...],
    ) -> ClientResult:
        """Run the clients of a chunk."""

        def mapped(id: Tensor, message: ServerMessage, client_state: ClientState) -> ClientResult:
            return self.run_client(round, splits, id, message, client_state)

        return over_clients(mapped, (0, down.vmap_axes(), 0), (ids, down, held), len(ids))

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
    """Scores of one model on the server's own sets; that of clients' validation is public."""
    one = {name: value.unsqueeze(0) for name, value in params.items()}
    sets = {"test": "test", "val": "public"}
    with torch.no_grad():
        return {split: pytree.index(task.evaluate_server(one, sets[split]), 0) for split in splits}


def init_client_states(
    method: Method, task: Task, ids: Tensor, initial: Params, keeps_local: bool
) -> ClientState:
    """Stacks of what clients hold before their first round."""

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
        """As the executor's own, of what the store has of these clients."""
        executor = self.executor
        method = executor.method.at(round, executor.rounds)
        groups = executor.groups(ids, message)
        weights = executor.known_weights(method, ids) if self._sums_early else torch.empty(0)
        settles = not (
            method.shared_param_names(executor.task)
            or method.report_ranges
            or "upload" in method.overridden_hooks
        )
        if len(groups) == 1 or not (settles or len(weights)):
            return self._run_all_at_once(round, ids, message, splits)
        facts: list[UpdateDiagnostics] = []
        sums: list[State | None] = []
        size = 0

        def run_chunks(cuts: list[slice]) -> ClientResult:
            """Run a group of chunks; return the results without what is no longer needed."""
            nonlocal size
            first = cuts[0].start
            cut = slice(first, cuts[-1].stop)
            here = chunk_index(cut)
            own = ids[cut].numpy()
            inner = relative_to_first(cuts)
            part = executor.group(
                round, ids[here], message.for_clients(here), self.store.held(own), splits, inner
            )
            facts.append(UpdateDiagnostics.compute(method, message.params, part))
            size = pytree.tree_bytes(part.update, stacked=True)
            if settles:
                self.store.commit(own, part.client_state, part.scores, facts[-1].is_finite)
                return replace(part, client_state=ClientState(), scores={})
            for chunk in inner:
                everybody = torch.ones(chunk.stop - chunk.start, dtype=torch.bool)
                up = pytree.index(part.update, chunk_index(chunk))
                own_weights = weights[first + chunk.start : first + chunk.stop]
                sums.append(sum_chunk(method, message.params, up, everybody, own_weights))
            return replace(
                part,
                update=ClientUpdate({}, metrics=part.update.metrics),
                client_state=replace(part.client_state, local_params={}),
            )

        with torch.no_grad():
            stack = pytree.concat_stream(map(run_chunks, groups), len(ids))
        known = UpdateDiagnostics.concatenate(facts)
        if settles:
            return CohortResults(
                torch.arange(len(ids)), stack, known_diagnostics=known, committed=True
            )

        def recompute_uploads() -> ClientUpdate:
            self._sums_early = (
                False  # a client that is left out once may be left out in every round
            )
            stack = self._run_all_at_once(round, ids, message, ()).stack
            assert stack is not None
            return stack.update

        return SummedCohortResults(
            torch.arange(len(ids)),
            stack,
            known_diagnostics=known,
            upload_size=size,
            chunk_sums=sums,
            known_weights=weights,
            recompute_uploads=recompute_uploads,
        )

    def _run_all_at_once(
        self, round: int, ids: Tensor, message: ServerMessage, splits: tuple[str, ...]
    ) -> CohortResults:
        return self.executor.run_clients(round, ids, message, self.store.held(ids.numpy()), splits)


@dataclass
class SummedCohortResults(CohortResults):
    """Replies whose uploads are gone."""

    chunk_sums: list[State | None] = field(default_factory=list)
    """The sums of each chunk over all its clients, by the :attr:`weights`."""
    recompute_uploads: Callable[[], ClientUpdate] = lambda: ClientUpdate({})
    """Computes the uploads once more."""
    _has_uploads: bool = False

    def partial_sums(
        self,
        method: Method,
        global_params: Params,
        cuts: list[slice],
        taken: Tensor,
        weights: Tensor | Params,
        factors: Tensor | None = None,
    ) -> State:
        """Return the known sums, or recompute the uploads if other replies are summed."""
        if self.weights_known(taken, weights, factors):
            return add_chunk_sums(self.chunk_sums)
        self._recover_uploads()
        return super().partial_sums(method, global_params, cuts, taken, weights, factors)

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
    """The replies of a round's end, by client, ascending."""

    ids: Ints
    results: CohortResults
    """Of these clients; what the server makes of them refers to the model that it has now."""
    arrived: Tensor
    """Booleans: the others were computed, and count for nothing."""
    cohort_size: int
    """The number of clients by whose chunks sums are made."""
    start_groups: list[StartGroup]
    absent: dict[int, str] = field(default_factory=dict)
    joules: float | None = None
    seconds: Tensor | None = None
    """How long each took."""
    staleness: Tensor | None = None
    """How many models each is late, where any may be."""

    @classmethod
    def from_results(cls, ids: Ints, replies: CohortResults) -> RoundReplies:
        """Whoever replied, as it replied."""
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


def chunk_index(chunk: slice) -> slice | Tensor:
    """Return an index that copies a chunk's rows unless they are the first of the stack.

    Matrix products may round differently at another alignment in memory.
    """
    return chunk if chunk.start == 0 else torch.arange(chunk.start, chunk.stop)


def sum_chunk(
    method: Method,
    global_params: Params,
    updates: ClientUpdate,
    taken: Tensor,
    weights: Tensor | Params,
    factors: Tensor | None = None,
) -> State | None:
    """Compute the method's partial sums over one chunk.

    Args:
        method: The method.
        global_params: The model that the clients were sent.
        updates: The updates of the chunk, stacked `[K, ...]`.
        taken: Mask `[K]` of the updates to sum.
        weights: Weights of the updates that are taken.
        factors: By which their changes are shrunk; None if none is.

    Returns:
        The sums; None if no update is taken.
    """
    if not bool(taken.any()):
        return None
    if not bool(taken.all()):
        updates = pytree.index(updates, taken)
    if factors is not None:
        updates = shrink_update(updates, global_params, factors)
    contiguous: ClientUpdate = pytree.map_leaves(lambda value: value.contiguous(), updates)
    return method.partial_sums(global_params, contiguous, weights)


def add_chunk_sums(parts: list[State | None]) -> State:
    """Add the sums of chunks in their order."""
    total, *others = [part for part in parts if part is not None]
    for part in others:
        total = pytree.map_leaves(lambda a, b: a + b, total, part)
    return total
