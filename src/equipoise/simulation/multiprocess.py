"""Several processes share the clients of a round; any number of them gives the same result."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.core import (
    ClientResult,
    ClientState,
    ClientUpdate,
    Params,
    ServerMessage,
    State,
)
from equipoise.core.method import weights_by_num_examples
from equipoise.simulation import executors
from equipoise.simulation.aggregation_guard import SumRequest, UpdateDiagnostics, update_dots
from equipoise.simulation.client_store import (
    CLIENT_STATE_NAMES,
    ClientStore,
    MemoryBudget,
    keeps_local,
    missing_rows,
)
from equipoise.simulation.executors import (
    CohortRequest,
    CohortResults,
    Executor,
    InProcessExecutor,
    PendingScores,
    evaluate_on_server,
)
from equipoise.simulation.ipc import ProcessGroup, WorkerLost
from equipoise.utils import pytree
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Ints

MAX_RELATIVE_DURATION = 0.9
"""Rounds must become this much shorter to leave the even split: moved clients bring states along.
"""
SPEED_STEPS = 2  # relative times per step are rounded to halves: noise must not move clients


class Worker:
    """The clients of one process. The leader and all other processes use this code."""

    def __init__(
        self,
        inner: InProcessExecutor,
        group: ProcessGroup,
        keep_models: bool,
        budget: MemoryBudget | None = None,
    ) -> None:
        """Create the worker.

        Args:
            inner: Executor of its clients.
            group: The processes.
            keep_models: Whether clients keep their trained models.
            budget: Memory that client state may use.
        """
        self.inner = inner
        self.group = group
        initial = inner.task.init_params(inner.seed)
        self.keeps_local = keeps_local(inner.method, inner.task, keep_models)
        self.store = ClientStore(
            inner.task.info.num_clients,
            lambda ids: inner.init_state(ids, initial, self.keeps_local),
            budget,
        )
        self._chunk_results: list[ClientResult] = []
        self._ids = np.empty(0, np.int64)
        self._sent_params: Params = {}
        self._method = inner.method

    def answer(self, call: State) -> State:
        """Handle one message of the leader and return the answer."""
        handlers: dict[str, Callable[[State], State]] = {
            "run": self.run,
            "sums": self.sum_chunks,
            "dots": self.dots,
            "commit": self.commit,
            "states": self.read_states,
            "evaluate": self.evaluate_global,
        }
        with torch.no_grad():
            return handlers[call["do"]](call)

    def run(self, call: State) -> State:
        """Fetch client states from other processes, then run the chunks of this process.

        Uploads stay here if only sums are needed. If the weights are known, the sums are returned.
        """
        self._exchange(call["moves"])
        ids = call["ids"]
        message = pytree.from_dict(ServerMessage, call["message"])
        round = call["round"]
        self._method = self.inner.method.at(round, self.inner.rounds)
        self._ids = ids.numpy()
        self._sent_params = message.params
        self._chunk_results = []
        if not len(ids):
            return {"results": {}, "diagnostics": {}, "upload_bytes": 0, "seconds": 0.0}
        client_state = self.store.client_state(self._ids)
        request = CohortRequest(round, ids, message, client_state, tuple(call["splits"]))
        self.store.prefetch(call["next_ids"].numpy())
        diagnostics: list[UpdateDiagnostics] = []
        started = time.perf_counter()
        for first, last in call["chunks"]:
            rows = executors.chunk_index(slice(first, last))
            result = self.inner.run_chunk(request.subset(rows))
            diagnostics.append(
                UpdateDiagnostics.compute(
                    self._method, message, ids[rows], result, self.inner.memory
                )
            )
            self._chunk_results.append(result)
        seconds = time.perf_counter() - started
        reports = [
            replace(result, client_state=ClientState(), update=self._reported_update(result.update))
            for result in self._chunk_results
        ]
        answer = {
            "results": pytree.to_dict(pytree.concatenate(reports)),
            "diagnostics": _to_message(UpdateDiagnostics.concatenate(diagnostics)),
            "upload_bytes": pytree.tree_bytes(self._chunk_results[0].update, stacked=True),
            "seconds": seconds,
        }
        if len(call["weights"]):
            all_accepted = torch.ones(len(ids), dtype=torch.bool)
            answer |= self.sum_chunks({"accepted": all_accepted, "weights": call["weights"]})
        return answer

    def commit(self, call: State) -> State:
        """Commit the new states of the clients whose replies were accepted."""
        if len(self._ids):
            states = [result.client_state for result in self._chunk_results]
            client_state = pytree.concatenate(states)
            if not self.keeps_local:
                client_state = replace(client_state, local_params={})
            self.store.commit(self._ids, client_state, {}, call["accepted"])
        return {}

    def sum_chunks(self, call: State) -> State:
        """Return the method's sums over each chunk of this process."""
        accepted = call["accepted"]
        factors = call.get("factors")
        sums: dict[str, State | None] = {}
        first = 0
        first_accepted = 0
        for number, result in enumerate(self._chunk_results):
            num_clients = len(result.hparams.epochs) if result.hparams is not None else 0
            chunk_accepted = accepted[first : first + num_clients]
            num_accepted = int(chunk_accepted.sum())
            places = slice(first_accepted, first_accepted + num_accepted)  # among the accepted
            request = SumRequest(
                self._method,
                self._sent_params,
                chunk_accepted,
                pytree.index(call["weights"], places),
                None if factors is None else factors[places],
            )
            sums[str(number)] = executors.sum_chunk(request, result.update)
            first += num_clients
            first_accepted += num_accepted
        return {"sums": sums}

    def dots(self, call: State) -> State:
        """Return the inner product of each update of this process with a direction."""
        dots = [
            update_dots(self._sent_params, result.update.params, call["direction"])
            for result in self._chunk_results
        ]
        return {"dots": torch.cat(dots) if dots else torch.zeros(0, dtype=torch.float64)}

    def read_states(self, call: State) -> State:
        """Return the stored rows of these clients, for the names that the leader asks for."""
        return self.store.rows(call["ids"].numpy(), call["names"])

    def evaluate_global(self, call: State) -> State:
        """Evaluate the global model on the server's own data."""
        return evaluate_on_server(self.inner.task, call["params"], tuple(call["splits"]))

    def write_states(self, ids: Tensor, trees: State) -> None:
        """Write client states."""
        if len(ids):
            self.store.write(ids.numpy(), trees)

    def _reported_update(self, update: ClientUpdate) -> ClientUpdate:
        """Return what the leader needs of an update: metrics alone if sums suffice."""
        if self._method.capabilities.aggregates_by_sum:
            return ClientUpdate({}, metrics=update.metrics)
        return update

    def _exchange(self, moves: State) -> None:
        """Exchange states with other processes, for clients that change their process."""
        outgoing = {
            int(to): self.group.send(
                int(to), self.store.rows(ids.numpy(), CLIENT_STATE_NAMES), crossing=True
            )
            for to, ids in moves["send"].items()
        }
        for sender, ids in moves["receive"].items():
            self.write_states(ids, self.group.receive(int(sender), crossing=True))
        for to, transfer in outgoing.items():
            self.group.wait_sent(transfer, to)


def _to_message(diagnostics: UpdateDiagnostics) -> State:
    """Return diagnostics as a tree that processes can send."""
    return {
        "is_finite": diagnostics.is_finite,
        "norms": diagnostics.norms,
        "extra_norms": diagnostics.extra_norms,
        "memory_moves": diagnostics.memory_moves,
        "violations": {str(row): reason for row, reason in diagnostics.violations.items()},
    }


def serve(worker: Worker, group: ProcessGroup) -> None:
    """Handle the leader's messages until the run ends, in a process that does not lead.

    The leader does not wait for an answer to `commit`: an error there is the next answer.
    """
    failure: State = {}
    while (call := group.receive(0))["do"] != "end":
        answer = failure or _handle_safely(worker, call)
        if call["do"] == "commit":
            failure = answer
        else:
            group.wait_sent(group.send(0, answer), 0)


def _handle_safely(worker: Worker, call: State) -> State:
    """Return the answer to a message, or the error, which the leader raises."""
    try:
        return worker.answer(call)
    except UsageError as error:
        return {"refused": str(error)}
    except WorkerLost as error:  # the leader ends the run, and says who it was
        return {"lost": str(error)}
    except Exception:
        return {"failed": traceback.format_exc()}


def assign_chunks(loads: list[float], step_times: list[float]) -> list[int]:
    """Assign chunks evenly, or by the speed of processes if the round is then clearly shorter.

    Args:
        loads: Planned steps of each chunk.
        step_times: Time per step of each process.

    Returns:
        The process of each chunk.
    """
    even = _longest_first(loads, [1.0] * len(step_times))
    by_speed = _longest_first(loads, step_times)
    even_duration = _round_duration(even, loads, step_times)
    if _round_duration(by_speed, loads, step_times) < MAX_RELATIVE_DURATION * even_duration:
        return by_speed
    return even


def _round_duration(
    process_of_chunk: list[int], loads: list[float], step_times: list[float]
) -> float:
    """Return the time until the last process is done."""
    return max(
        step_time * _load_of(process, process_of_chunk, loads)
        for process, step_time in enumerate(step_times)
    )


def _load_of(process: int, process_of_chunk: list[int], loads: list[float]) -> float:
    """Return the planned steps of a process."""
    pairs = zip(loads, process_of_chunk, strict=True)
    return sum(load for load, owner in pairs if owner == process)


def _longest_first(loads: list[float], step_times: list[float]) -> list[int]:
    """Assign chunks, the longest first, each to the process that would finish it first."""
    ends = [0.0] * len(step_times)
    process_of_chunk = [0] * len(loads)
    for chunk in sorted(range(len(loads)), key=lambda chunk: -loads[chunk]):
        # Where several would finish it at the same time, choose the one with the least work.
        finish_times = [
            (end + loads[chunk] * step_time, end)
            for end, step_time in zip(ends, step_times, strict=True)
        ]
        earliest = min(finish_times)
        process = finish_times.index(earliest)
        process_of_chunk[chunk] = process
        ends[process] = earliest[0]
    return process_of_chunk


class WorkerSpeed:
    """Measured time per step of each process; only the placement of chunks depends on it."""

    def __init__(self, processes: int) -> None:
        """Begin without measurements."""
        self._seconds = [0.0] * processes
        self._warm = [False] * processes

    def update(self, process: int, load: float, seconds: float) -> None:
        """Update the time per step of a process. Its first round is a warm-up.

        Args:
            process: Rank of the process.
            load: Local steps that it was assigned.
            seconds: How long it took.
        """
        if not load:
            # Approach the fastest, so that a process that was slow once is tried again.
            self._seconds[process] = (self._seconds[process] + self._fastest) / 2
        elif self._warm[process]:
            last = self._seconds[process]
            measured = seconds / load
            self._seconds[process] = (last + measured) / 2 if last else measured
        self._warm[process] |= load > 0

    @property
    def _fastest(self) -> float:
        """The least measured time per step; 0 without a measurement."""
        return min((seconds for seconds in self._seconds if seconds), default=0.0)

    @property
    def step_times(self) -> list[float]:
        """Times per step relative to the fastest, rounded: clients that move cost time."""
        fastest = self._fastest
        return [
            max(1.0, round(SPEED_STEPS * seconds / fastest) / SPEED_STEPS) if seconds else 1.0
            for seconds in self._seconds
        ]


class MultiProcessExecutor(Executor):
    """Lead the other processes, and compute a share of the clients in this one."""

    def __init__(self, worker: Worker, group: ProcessGroup) -> None:
        """Create the executor of the first process.

        Args:
            worker: The worker of this process.
            group: The processes.
        """
        inner = worker.inner
        super().__init__(inner.method, inner.task, inner.training, inner.seed, inner.rounds)
        self.worker = worker
        self.group = group
        self.processes = group.size
        self._process_of_client = np.full(inner.task.info.num_clients, -1, np.int32)
        self.worker_speed = WorkerSpeed(self.processes)
        self._next_ids = torch.empty(0, dtype=torch.int64)
        self._unfinished_sends: list[tuple[int, Any]] = []
        # Whether processes sum by the expected weights before the server has seen the replies.
        self.sums_early = True

    def chunks(self, clients: int) -> list[slice]:
        """Split a cohort as the inner executor does."""
        return self.worker.inner.chunks(clients)

    def init_state(self, ids: Tensor, initial: Params, keeps_local: bool) -> ClientState:
        """Return empty states: the processes keep them."""
        return ClientState()

    def prefetch(self, ids: Ints) -> None:
        """Remember which clients the next round is likely to ask."""
        self._next_ids = torch.from_numpy(ids)

    def run_clients(self, request: CohortRequest) -> CohortResults:
        """Assign the chunks to processes, and let all of them run."""
        ids = request.ids
        chunks = self.chunks(len(ids))
        loads = self._planned_steps(request, chunks)
        process_of_chunk = assign_chunks(loads, self.worker_speed.step_times)
        chunks_by_process: list[list[slice]] = [[] for _ in range(self.group.size)]
        for chunk, process in zip(chunks, process_of_chunk, strict=True):
            chunks_by_process[process].append(chunk)
        rows_by_process = [_rows_of(own_chunks) for own_chunks in chunks_by_process]
        moves = self._plan_moves(ids.numpy(), rows_by_process)
        weights = self._known_weights(request.round, ids)
        calls: list[State] = []
        for process, rows in enumerate(rows_by_process):
            sizes = [chunk.stop - chunk.start for chunk in chunks_by_process[process]]
            ends = np.cumsum([0, *sizes]).tolist()
            calls.append(
                {
                    "do": "run",
                    "round": request.round,
                    "splits": list(request.splits),
                    "ids": ids[rows],
                    "next_ids": self._next_ids,
                    "chunks": [list(pair) for pair in pairwise(ends)],
                    "message": pytree.to_dict(request.message.for_clients(rows)),
                    "moves": moves[process],
                    "weights": weights[rows] if len(weights) else weights,
                }
            )
        answers = self.ask(calls)
        for process, answer in enumerate(answers):
            load = _load_of(process, process_of_chunk, loads)
            self.worker_speed.update(process, load, answer["seconds"])
        return RemoteCohortResults.from_answers(
            self, rows_by_process, process_of_chunk, answers, weights
        )

    def _planned_steps(self, request: CohortRequest, chunks: list[slice]) -> list[float]:
        """Return the local steps of each chunk, as far as the server knows them."""
        training = self.training.at(request.round, self.rounds)
        hparams = request.message.hparams
        epochs = torch.full_like(request.ids, training.epochs)
        if hparams is not None:
            epochs = hparams.epochs
        steps = self.task.num_steps(request.ids, epochs, training)
        return [float(steps[chunk].sum()) for chunk in chunks]

    def _known_weights(self, round: int, ids: Tensor) -> Tensor:
        """Return the clients' weights if no reply changes them and sums may come early."""
        method = self.method.at(round, self.rounds)
        known = (
            self.sums_early
            and method.capabilities.aggregates_by_sum
            and not {"aggregation_weights", "partial_sums"} & method.overridden_hooks
        )
        return weights_by_num_examples(self.task, ids) if known else torch.empty(0)

    def ask(self, calls: list[State]) -> list[State]:
        """Send each process its call, handle this one's own, and gather the answers."""
        others = range(1, self.group.size)
        for process in others:
            self._send(process, calls[process])
        own_answer = self.worker.answer(calls[0])
        self._wait_for_sends()
        answers = [self._raise_failure(self.group.receive(process), process) for process in others]
        return [own_answer, *answers]

    def evaluate_global(self, params: Params, splits: tuple[str, ...]) -> PendingScores:
        """Let the last process evaluate the global model while this one continues."""
        last = self.group.size - 1
        if not splits or not last:
            return super().evaluate_global(params, splits)
        self._send(last, {"do": "evaluate", "params": params, "splits": list(splits)})
        scores: dict[str, Params] = {}

        def wait() -> dict[str, Params]:
            if not scores:
                scores.update(self._raise_failure(self.group.receive(last), last))
            return scores

        return wait

    def commit(self, accepted: list[Tensor]) -> None:
        """Tell each process whose replies were accepted; no process answers."""
        for process in range(1, self.group.size):
            self._send(process, {"do": "commit", "accepted": accepted[process]})
        self.worker.commit({"accepted": accepted[0]})

    def gather_state(self, ids: Ints, names: tuple[str, ...] = CLIENT_STATE_NAMES) -> State:
        """Collect the states of these clients from all processes."""
        rows_by_process = [
            torch.from_numpy(np.flatnonzero(self._process_of_client[ids] == process))
            for process in range(self.group.size)
        ]
        tensor_ids = torch.from_numpy(ids)
        answers = self.ask(
            [
                {"do": "states", "ids": tensor_ids[rows], "names": list(names)}
                for rows in rows_by_process
            ]
        )
        parts = [
            (rows, answer)
            for rows, answer in zip(rows_by_process, answers, strict=True)
            if len(rows)
        ]
        gathered: State = {}
        for name in names:
            example = next((tree[name] for _, tree in parts if name in tree), None)
            if example is None:
                continue
            gathered[name] = pytree.map_leaves(lambda value: missing_rows(value, len(ids)), example)
            for rows, tree in parts:
                if name in tree:
                    pytree.map_leaves(
                        lambda all_rows, some, rows=rows: all_rows.index_copy_(0, rows, some),
                        gathered[name],
                        tree[name],
                    )
        return gathered

    def restore_state(self, ids: Ints, trees: State) -> State:
        """Keep restored states in this process until another one runs their clients."""
        self._process_of_client[ids] = 0
        own = {name: trees[name] for name in CLIENT_STATE_NAMES if name in trees}
        self.worker.write_states(torch.from_numpy(ids), own)
        others = {name: tree for name, tree in trees.items() if name not in CLIENT_STATE_NAMES}
        return {**pytree.to_dict(ClientState()), **others}

    def close(self) -> None:
        """End the other processes."""
        for process in range(1, self.group.size):
            self._send(process, {"do": "end"})
        self._wait_for_sends()

    def _send(self, process: int, call: State) -> None:
        """Send without waiting: the other process may have to send its own answer first."""
        self._unfinished_sends.append((process, self.group.send(process, call)))

    def _wait_for_sends(self) -> None:
        """Wait until all messages have left."""
        for process, transfer in self._unfinished_sends:
            self.group.wait_sent(transfer, process)
        self._unfinished_sends.clear()

    def _plan_moves(self, ids: Ints, rows_by_process: list[Tensor]) -> list[State]:
        """Return whose states each process sends to, and receives from, each other one."""
        moves: list[State] = [{"send": {}, "receive": {}} for _ in rows_by_process]
        for receiver, rows in enumerate(rows_by_process):
            needed = ids[rows.numpy()]
            owners = self._process_of_client[needed]
            for sender in sorted(set(owners.tolist()) - {-1, receiver}):
                moved = torch.from_numpy(needed[owners == sender])
                moves[sender]["send"][str(receiver)] = moved
                moves[receiver]["receive"][str(sender)] = moved
            self._process_of_client[needed] = receiver
        return moves

    def _raise_failure(self, answer: State, process: int) -> State:
        """Return an answer; raise the error if it reports one."""
        if "refused" in answer:
            raise UsageError(answer["refused"])
        if "lost" in answer:
            raise WorkerLost(answer["lost"])
        if "failed" in answer:
            raise RuntimeError(
                f"process {process + 1} of {self.group.size} failed:\n{answer['failed']}"
            )
        return answer


def _rows_of(chunks: list[slice]) -> Tensor:
    """Return the rows of some chunks of a cohort."""
    rows = [torch.arange(chunk.start, chunk.stop) for chunk in chunks]
    return torch.cat(rows) if rows else torch.arange(0)


@dataclass
class RemoteCohortResults(CohortResults):
    """Replies whose states, and uploads if sums suffice, stay in the processes that made them."""

    executor: MultiProcessExecutor | None = None
    rows_by_process: list[Tensor] = field(default_factory=list)
    """Rows of the cohort by process."""
    process_of_chunk: list[int] = field(default_factory=list)
    """The process of each chunk."""
    chunk_sums: list[State] = field(default_factory=list)
    """Sums over the clients of each chunk with the known weights, if they came with the replies."""
    known_weights: Tensor = field(default_factory=lambda: torch.empty(0))
    """Weights of these sums; empty if none came."""

    @classmethod
    def from_answers(
        cls,
        executor: MultiProcessExecutor,
        rows_by_process: list[Tensor],
        process_of_chunk: list[int],
        answers: list[State],
        weights: Tensor,
    ) -> RemoteCohortResults:
        """Join the answers of all processes in the order of the cohort.

        Args:
            executor: The executor, which can ask the processes for more.
            rows_by_process: Rows of the cohort by process.
            process_of_chunk: The process of each chunk.
            answers: The answers of all processes to the call `run`.
            weights: Weights of the sums that came with the answers; empty if none came.

        Returns:
            The results of the cohort.
        """
        parts = [
            (rows, answer)
            for rows, answer in zip(rows_by_process, answers, strict=True)
            if len(rows)
        ]
        is_finite, norms, extra_norms, memory_moves = (
            torch.cat([answer["diagnostics"][name] for _, answer in parts])
            for name in ("is_finite", "norms", "extra_norms", "memory_moves")
        )
        stack = pytree.concatenate(
            [pytree.from_dict(ClientResult, answer["results"]) for _, answer in parts]
        )
        rows = torch.cat(rows_by_process)
        if bool((rows[1:] < rows[:-1]).any()):
            order = rows.argsort()
            is_finite = is_finite[order]
            norms = norms[order]
            extra_norms = extra_norms[order]
            memory_moves = memory_moves[order]
            stack = pytree.index(stack, order)
        violations = {
            int(own_rows[int(place)]): reason
            for own_rows, answer in parts
            for place, reason in answer["diagnostics"]["violations"].items()
        }
        return cls(
            torch.arange(len(rows)),
            stack,
            known_diagnostics=UpdateDiagnostics(
                is_finite, norms, extra_norms, memory_moves, dict(sorted(violations.items()))
            ),
            upload_size=parts[0][1]["upload_bytes"],
            executor=executor,
            rows_by_process=rows_by_process,
            process_of_chunk=process_of_chunk,
            chunk_sums=[answer.get("sums", {}) for answer in answers],
            known_weights=weights,
        )

    def commit(self, accepted: Tensor) -> None:
        """Tell each process which replies were used."""
        assert self.executor is not None
        self.executor.commit([accepted[rows] for rows in self.rows_by_process])

    def partial_sums(self, request: SumRequest, chunks: list[slice]) -> State:
        """Add the sums of all chunks in their order."""
        sums_by_process = self.chunk_sums
        if not self._sums_are_known(request):
            assert self.executor is not None
            # A client whose weight is bounded once is likely to be so in every round.
            self.executor.sums_early = False
            sums_by_process = self._ask_for_sums(request)
        next_chunk = [0] * len(sums_by_process)
        parts: list[State | None] = []
        for process in self.process_of_chunk:
            parts.append(sums_by_process[process][str(next_chunk[process])])
            next_chunk[process] += 1
        return executors.add_chunk_sums(parts)

    def _sums_are_known(self, request: SumRequest) -> bool:
        """Return whether these are the sums that came with the replies."""
        return (
            request.factors is None
            and bool(request.accepted.all())
            and isinstance(request.weights, Tensor)
            and torch.equal(request.weights, self.known_weights)
        )

    def update_dots(self, global_params: Params, direction: Params, accepted: Tensor) -> Tensor:
        """Ask each process for its clients' inner products."""
        assert self.executor is not None
        call: State = {"do": "dots", "direction": direction}
        answers = self.executor.ask([call for _ in self.rows_by_process])
        dots = torch.cat([answer["dots"] for answer in answers])
        order = torch.cat(self.rows_by_process).argsort()
        return dots[order][accepted]

    def _ask_for_sums(self, request: SumRequest) -> list[State]:
        """Let each process sum its chunks."""
        assert self.executor is not None
        places = request.accepted.cumsum(0) - 1  # of an accepted reply, among the weights
        calls: list[State] = []
        for rows in self.rows_by_process:
            accepted = request.accepted[rows]
            own_places = places[rows][accepted]
            call: State = {
                "do": "sums",
                "accepted": accepted,
                "weights": pytree.index(request.weights, own_places),
            }
            if request.factors is not None:
                call["factors"] = request.factors[own_places]
            calls.append(call)
        return [answer["sums"] for answer in self.executor.ask(calls)]
