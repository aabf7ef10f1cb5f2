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


class Worker:
    """The clients of one process: the leader's own share and all others use this code."""

    def __init__(
        self,
        inner: InProcessExecutor,
        group: ProcessGroup,
        keep_models: bool,
        room: MemoryBudget | None = None,
    ) -> None:
        """Create the worker.

        Args:
            inner: Executor of its clients.
            group: The processes.
            keep_models: Whether clients keep their trained models.
            room: Memory that client state may use.
        """
        self.inner = inner
        self.group = group
        initial = inner.task.init_params(inner.seed)
        self.keeps_local = keeps_local(inner.method, inner.task, keep_models)
        self.store = ClientStore(
            inner.task.info.num_clients,
            lambda ids: inner.init_state(ids, initial, self.keeps_local),
            room,
        )
        self._parts: list[ClientResult] = []
        self._ids = np.empty(0, np.int64)
        self._sent: Params = {}
        self._method = inner.method

    def answer(self, call: State) -> State:
        """Handle one message of the leader and return the answer."""
        calls: dict[str, Callable[[State], State]] = {
            **{
                "run": self.run,
                "sums": self.sum_chunks,
                "dots": self.dots,
                "commit": self.commit,
                "states": self.read_states,
                "evaluate": self.evaluate_global,
            }
        }
        with torch.no_grad():
            return calls[call["do"]](call)

    def run(self, call: State) -> State:
        """Fetch client states from other processes, then run the chunks of this process.

        Uploads stay here if only sums are needed. If the weights are known, the sums are returned.
        """
        self._exchange(call["moves"])
        ids = call["ids"]
        down = pytree.from_dict(ServerMessage, call["down"])
        round = call["round"]
        self._method = self.inner.method.at(round, self.inner.rounds)
        self._ids = ids.numpy()
        self._sent = down.params
        self._parts = []
        if not len(ids):
            return {"replies": {}, "facts": {}, "bytes": 0, "seconds": 0.0}
        held = self.store.client_state(self._ids)
        request = CohortRequest(round, ids, down, held, tuple(call["splits"]))
        self.store.prefetch(call["next"].numpy())
        facts: list[UpdateDiagnostics] = []
        started = time.perf_counter()
        for first, last in call["cuts"]:
            here = executors.chunk_index(slice(first, last))
            part = self.inner.run_chunk(request.part(here))
            facts.append(
                UpdateDiagnostics.compute(self._method, down, ids[here], part, self.inner.memory)
            )
            self._parts.append(part)
        seconds = time.perf_counter() - started
        size = pytree.tree_bytes(self._parts[0].update, stacked=True)
        told = [
            replace(part, client_state=ClientState(), update=self._reported_update(part.update))
            for part in self._parts
        ]
        whole = UpdateDiagnostics.concatenate(facts)
        why = {str(place): text for place, text in whole.violations.items()}
        known = {
            "finite": whole.is_finite,
            "long": whole.norms,
            "extra": whole.extra_norms,
            "reasons": why,
        }
        answer = {
            "replies": pytree.to_dict(pytree.concatenate(told)),
            "facts": known,
            "bytes": size,
            "seconds": seconds,
        }
        if len(call["weights"]):
            answer |= self.sum_chunks(
                {"taken": torch.ones(len(ids), dtype=torch.bool), "weights": call["weights"]}
            )
        return answer

    def commit(self, call: State) -> State:
        """Commit the new states of the clients whose replies were accepted."""
        if len(self._ids):
            held = pytree.concatenate([part.client_state for part in self._parts])
            held = held if self.keeps_local else replace(held, local_params={})
            self.store.commit(self._ids, held, {}, call["taken"])
        return {}

    def sum_chunks(self, call: State) -> State:
        """Return the method's sums over each chunk of this process."""
        taken = call["taken"]
        weights = call["weights"]
        factors = call.get("factors")
        found: dict[str, State | None] = {}
        first = 0
        used = 0
        for number, part in enumerate(self._parts):
            clients = len(part.hparams.epochs) if part.hparams is not None else 0
            here = taken[first : first + clients]
            count = int(here.sum())
            counted = slice(used, used + count)
            request = SumRequest(
                self._method,
                self._sent,
                here,
                pytree.index(weights, counted),
                None if factors is None else factors[counted],
            )
            found[str(number)] = executors.sum_chunk(request, part.update)
            first = first + clients
            used = used + count
        return {"sums": found}

    def dots(self, call: State) -> State:
        """Return the inner product of each update of this process with a direction."""
        direction = call["direction"]
        parts = [update_dots(self._sent, part.update.params, direction) for part in self._parts]
        return {"dots": torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)}

    def read_states(self, call: State) -> State:
        """Return the stored rows of these clients, for the names that the leader asks for."""
        return self.store.rows(call["ids"].numpy(), call["names"])

    def evaluate_global(self, call: State) -> State:
        """Evaluate the global model on the server's own data."""
        return evaluate_on_server(self.inner.task, call["params"], tuple(call["splits"]))

    def write_states(self, ids: Tensor, held: State) -> None:
        """Write client states."""
        if len(ids):
            self.store.write(ids.numpy(), held)

    def _reported_update(self, updates: ClientUpdate) -> ClientUpdate:
        return (
            ClientUpdate({}, metrics=updates.metrics)
            if self._method.capabilities.aggregates_by_sum
            else updates
        )

    def _exchange(self, moves: State) -> None:
        """Exchange states with other processes, for clients that change their process."""
        outgoing = {
            int(to): self.group.send(
                int(to), self.store.rows(ids.numpy(), CLIENT_STATE_NAMES), crossing=True
            )
            for to, ids in moves["out"].items()
        }
        for sender, ids in moves["in"].items():
            self.write_states(ids, self.group.receive(int(sender), crossing=True))
        for to, under_way in outgoing.items():
            self.group.wait_sent(under_way, to)


def serve(share: Worker, group: ProcessGroup) -> None:
    """Handle the leader's messages until the run ends, in a process that does not lead.

    The leader does not wait for an answer to `commit`: an error there is the next answer.
    """
    wrong: State = {}
    while (call := group.receive(0))["do"] != "end":
        answer = wrong or _handle_safely(share, call)
        if call["do"] == "commit":
            wrong = answer
        else:
            group.wait_sent(group.send(0, answer), 0)


def _handle_safely(share: Worker, call: State) -> State:
    try:
        return share.answer(call)
    except UsageError as error:
        return {"refused": str(error)}
    except WorkerLost as error:  # the leader ends the run, and says who it was
        return {"lost": str(error)}
    except Exception:
        return {"failed": traceback.format_exc()}


MAX_RELATIVE_DURATION = 0.9  # clients that change their process take what they hold with them
SPEED_STEPS = 2  # per doubling of the time that a process takes beside the fastest


def assign_chunks(loads: list[float], paces: list[float]) -> list[int]:
    """Assign chunks evenly, or by the speed of processes if the round is then clearly shorter.

    Args:
        loads: Planned steps of each chunk.
        paces: Time per step of each process.

    Returns:
        The process of each chunk.
    """
    even = _longest_first(loads, [1.0] * len(paces))
    paced = _longest_first(loads, paces)
    return (
        paced
        if _round_duration(paced, loads, paces)
        < MAX_RELATIVE_DURATION * _round_duration(even, loads, paces)
        else even
    )


def _round_duration(place: list[int], loads: list[float], paces: list[float]) -> float:
    return max(
        pace * sum(load for load, where in zip(loads, place, strict=True) if where == process)
        for process, pace in enumerate(paces)
    )


def _longest_first(loads: list[float], paces: list[float]) -> list[int]:
    """Assign chunks, the longest first, each to the process that would finish it first."""
    ends = [0.0] * len(paces)
    place = [0] * len(loads)
    for chunk in sorted(range(len(loads)), key=lambda chunk: -loads[chunk]):
        then = [(end + loads[chunk] * pace, end) for end, pace in zip(ends, paces, strict=True)]
        place[chunk] = then.index(min(then))  # of equals the one that has less to do
        ends[place[chunk]] = min(then)[0]
    return place


class WorkerSpeed:
    """Measured time per step of each process; only the placement of chunks depends on it."""

    def __init__(self, processes: int) -> None:
        """Begin without measurements."""
        self._seconds = [0.0] * processes
        self._warm = [False] * processes

    def update(self, process: int, load: float, seconds: float) -> None:
        """Update the time per step of a process; its first round is a warm-up."""
        if not load:  # or a process that was slow once would never be asked again
            self._seconds[process] = (self._seconds[process] + self._fastest) / 2
        elif self._warm[process]:
            before = self._seconds[process]
            now = seconds / load
            self._seconds[process] = (before + now) / 2 if before else now
        self._warm[process] |= load > 0

    @property
    def _fastest(self) -> float:
        return min((seconds for seconds in self._seconds if seconds), default=0.0)

    @property
    def speeds(self) -> list[float]:
        """Return times relative to the fastest, rounded: clients that change process cost time."""
        fastest = self._fastest
        return [
            max(1.0, round(SPEED_STEPS * seconds / fastest) / SPEED_STEPS) if seconds else 1.0
            for seconds in self._seconds
        ]


class MultiProcessExecutor(Executor):
    """Lead the other processes, and compute a share of the clients in this one."""

    def __init__(self, share: Worker, group: ProcessGroup) -> None:
        """Create the executor of the first process.

        Args:
            share: The worker of this process.
            group: The processes.
        """
        inner = share.inner
        super().__init__(inner.method, inner.task, inner.training, inner.seed, inner.rounds)
        self.worker = share
        self.group = group
        self.processes = group.size
        self._process_of_client = np.full(inner.task.info.num_clients, -1, np.int32)
        self.worker_speed = WorkerSpeed(self.processes)
        self._next = torch.empty(0, dtype=torch.int64)
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
        self._next = torch.from_numpy(ids)

    def run_clients(self, request: CohortRequest) -> CohortResults:
        """Assign the chunks to processes, and let all of them run."""
        round = request.round
        ids = request.ids
        message = request.message
        training = self.training.at(round, self.rounds)
        cuts = self.chunks(len(ids))
        epochs = (
            torch.full_like(ids, training.epochs)
            if message.hparams is None
            else message.hparams.epochs
        )
        steps = self.task.num_steps(ids, epochs, training)
        loads = [float(steps[cut].sum()) for cut in cuts]
        place = assign_chunks(loads, self.worker_speed.speeds)
        mine = [
            [cut for cut, where in zip(cuts, place, strict=True) if where == p]
            for p in range(self.group.size)
        ]
        rows = [
            torch.cat([torch.arange(c.start, c.stop) for c in part] or [torch.arange(0)])
            for part in mine
        ]
        moves = self._plan_moves(ids.numpy(), rows)
        weights = torch.empty(0)
        if self.sums_early:
            weights = self.known_weights(self.method.at(round, self.rounds), ids)
        calls = []
        for process, part in enumerate(rows):
            ends = np.cumsum([0, *(cut.stop - cut.start for cut in mine[process])]).tolist()
            calls.append(
                {
                    **{
                        "do": "run",
                        "round": round,
                        "splits": list(request.splits),
                        "ids": ids[part],
                        "next": self._next,
                    },
                    **{"cuts": [list(pair) for pair in pairwise(ends)]},
                    **{"down": pytree.to_dict(message.for_clients(part)), "moves": moves[process]},
                    "weights": weights[part] if len(weights) else weights,
                }
            )
        answers = self.ask(calls)
        for process, answer in enumerate(answers):
            load = sum(load for load, where in zip(loads, place, strict=True) if where == process)
            self.worker_speed.update(process, load, answer["seconds"])
        return RemoteCohortResults.from_answers(self, rows, place, answers, weights)

    def ask(self, calls: list[State]) -> list[State]:
        """Send each process its call, handle this one's own, and gather the answers."""
        others = range(1, self.group.size)
        for process in others:
            self._send(process, calls[process])
        own = self.worker.answer(calls[0])
        self._wait_for_sends()
        return [
            own,
            *(self._raise_failure(self.group.receive(process), process) for process in others),
        ]

    def evaluate_global(self, params: Params, splits: tuple[str, ...]) -> PendingScores:
        """Let the last process evaluate the global model while this one continues."""
        last = self.group.size - 1
        if not splits or not last:
            return super().evaluate_global(params, splits)
        self._send(last, {"do": "evaluate", "params": params, "splits": list(splits)})
        found: dict[str, Params] = {}

        def wait() -> dict[str, Params]:
            if not found:
                found.update(self._raise_failure(self.group.receive(last), last))
            return found

        return wait

    def commit(self, taken: list[Tensor]) -> None:
        """Tell each process whose replies were accepted; no process answers."""
        for process in range(1, self.group.size):
            self._send(process, {"do": "commit", "taken": taken[process]})
        self.worker.commit({"taken": taken[0]})

    def gather_state(self, ids: Ints, names: tuple[str, ...] = CLIENT_STATE_NAMES) -> State:
        """Collect the states of these clients from all processes."""
        who = [
            torch.from_numpy(np.flatnonzero(self._process_of_client[ids] == p))
            for p in range(self.group.size)
        ]
        tensor_ids = torch.from_numpy(ids)
        parts = self.ask(
            [{"do": "states", "ids": tensor_ids[rows], "names": list(names)} for rows in who]
        )
        some = [(rows, part) for rows, part in zip(who, parts, strict=True) if len(rows)]
        found: State = {}
        for name in names:
            like = next((part[name] for _, part in some if name in part), None)
            if like is not None:
                found[name] = pytree.map_leaves(lambda value: missing_rows(value, len(ids)), like)
                for rows, part in some:
                    if name in part:
                        pytree.map_leaves(
                            lambda all, here, rows=rows: all.index_copy_(0, rows, here),
                            found[name],
                            part[name],
                        )
        return found

    def restore_state(self, ids: Ints, kept: State) -> State:
        """Keep restored states in this process until another one runs their clients."""
        self._process_of_client[ids] = 0
        self.worker.write_states(
            torch.from_numpy(ids), {name: kept[name] for name in CLIENT_STATE_NAMES if name in kept}
        )
        return {
            **pytree.to_dict(ClientState()),
            **{name: tree for name, tree in kept.items() if name not in CLIENT_STATE_NAMES},
        }

    def close(self) -> None:
        """End the other processes."""
        for process in range(1, self.group.size):
            self._send(process, {"do": "end"})
        self._wait_for_sends()

    def _send(self, process: int, call: State) -> None:
        """Send without waiting: the other process may have to send its own answer first."""
        self._unfinished_sends.append((process, self.group.send(process, call)))

    def _wait_for_sends(self) -> None:
        for process, work in self._unfinished_sends:
            self.group.wait_sent(work, process)
        self._unfinished_sends.clear()

    def _plan_moves(self, ids: Ints, rows: list[Tensor]) -> list[State]:
        moves: list[State] = [{"out": {}, "in": {}} for _ in rows]
        for to, part in enumerate(rows):
            here = ids[part.numpy()]
            owners = self._process_of_client[here]
            for sender in sorted(set(owners.tolist()) - {-1, to}):
                which = torch.from_numpy(here[owners == sender])
                moves[sender]["out"][str(to)] = moves[to]["in"][str(sender)] = which
            self._process_of_client[here] = to
        return moves

    def _raise_failure(self, answer: State, process: int) -> State:
        if "refused" in answer:
            raise UsageError(answer["refused"])
        if "lost" in answer:
            raise WorkerLost(answer["lost"])
        if "failed" in answer:
            raise RuntimeError(
                f"process {process + 1} of {self.group.size} failed:\n{answer['failed']}"
            )
        return answer


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

    @classmethod
    def from_answers(
        cls,
        spread: MultiProcessExecutor,
        parts: list[Tensor],
        place: list[int],
        answers: list[State],
        weights: Tensor,
    ) -> RemoteCohortResults:
        """Join the answers of all processes in the order of the cohort."""
        places = torch.cat(parts)
        some = [(rows, answer) for rows, answer in zip(parts, answers, strict=True) if len(rows)]
        facts = [answer["facts"] for _, answer in some]
        finite, long, extra = (
            torch.cat([fact[name] for fact in facts]) for name in ("finite", "long", "extra")
        )
        stack = pytree.concatenate(
            [pytree.from_dict(ClientResult, answer["replies"]) for _, answer in some]
        )
        if bool((places[1:] < places[:-1]).any()):
            order = places.argsort()
            finite = finite[order]
            long = long[order]
            extra = extra[order]
            stack = pytree.index(stack, order)
        why = {
            int(rows[int(k)]): text
            for rows, answer in some
            for k, text in answer["facts"]["reasons"].items()
        }
        known = UpdateDiagnostics(finite, long, extra, dict(sorted(why.items())))
        size = some[0][1]["bytes"]
        early = [answer.get("sums", {}) for answer in answers]
        return cls(
            torch.arange(len(places)),
            stack,
            known_diagnostics=known,
            upload_size=size,
            executor=spread,
            rows_by_process=parts,
            process_of_chunk=place,
            chunk_sums=early,
            known_weights=weights,
        )

    def commit(self, taken: Tensor) -> None:
        """Tell each process which replies were used."""
        assert self.executor is not None
        self.executor.commit([taken[rows] for rows in self.rows_by_process])

    def partial_sums(self, request: SumRequest, chunks: list[slice]) -> State:
        """Add the sums of all chunks in their order."""
        answers = self.chunk_sums
        if not self.sums_are_known(request):
            assert self.executor is not None
            # A client whose weight is bounded once is likely to be so in every round.
            self.executor.sums_early = False
            answers = self._ask(request)
        turn = [0] * len(answers)
        parts: list[State | None] = []
        for process in self.process_of_chunk:
            parts.append(answers[process][str(turn[process])])
            turn[process] += 1
        return executors.add_chunk_sums(parts)

    def update_dots(self, global_params: Params, direction: Params, taken: Tensor) -> Tensor:
        """Ask each process for its clients' inner products."""
        assert self.executor is not None
        call: State = {"do": "dots", "direction": direction}
        answers = self.executor.ask([call for _ in self.rows_by_process])
        found = torch.cat([answer["dots"] for answer in answers])
        order = torch.cat(self.rows_by_process).argsort()
        return found[order][taken]

    def _ask(self, request: SumRequest) -> list[State]:
        """Let each process sum its chunks."""
        assert self.executor is not None
        places = request.accepted.cumsum(0) - 1  # of an accepted reply, among the weights
        calls = []
        for rows in self.rows_by_process:
            here = request.accepted[rows]
            own = places[rows][here]
            weights = pytree.index(request.weights, own)
            call: State = {"do": "sums", "taken": here, "weights": weights}
            if request.factors is not None:
                call["factors"] = request.factors[own]
            calls.append(call)
        return [answer["sums"] for answer in self.executor.ask(calls)]
