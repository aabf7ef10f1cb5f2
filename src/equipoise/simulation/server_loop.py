"""The round: decisions 0 to 5 in order, four named evaluations, bytes; and the state that carries to the next."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from equipoise.client_selection.policies import Uniform
from equipoise.clock.config import ClockConfig
from equipoise.config import schedules
from equipoise.core import (
    Blocks,
    ClientResult,
    ClientState,
    Method,
    Params,
    SelectionPolicy,
    Server,
    ServerMessage,
    State,
    SupervisedTask,
    Task,
    TrainingConfig,
)
from equipoise.data.federated_dataset import Ints
from equipoise.records.rounds import Bytes, MeanMinMax, PrivacySpent, RoundRecord
from equipoise.records.scores import NOTHING, Evaluations, Scores
from equipoise.simulation.aggregation_guard import (
    MAX_NORM_RATIO,
    MAX_NORM_RATIO_STATEFUL,
    AggregationOutcome,
    aggregate_with_fault_isolation,
    norm_outliers,
    rows_are_finite,
)
from equipoise.simulation.client_selector import ClientSelector
from equipoise.simulation.client_store import ClientStore, MemoryBudget, keeps_local
from equipoise.simulation.clock import Clock, StartedBatch
from equipoise.simulation.executor_selection import EXECUTORS, MakeExecutor
from equipoise.simulation.executors import (
    AsyncExecutor,
    ChunkedRound,
    CohortResults,
    InProcessExecutor,
    Judged,
    RoundReplies,
)
from equipoise.utils import pytree, rng
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import tree_bytes

MAX_LISTED_CLIENTS = 1000  # cohorts up to this size have per-client decisions in the log


class PrivacyAccountant(Protocol):
    """Whoever counts what a method costs under differential privacy."""

    def after(self, asked: Ints, replies: int) -> PrivacySpent:
        """What has been spent after a round that asked these clients and used so many replies."""

    def state(self) -> State:
        """For a checkpoint."""

    def load(self, state: State) -> None:
        """The inverse of :meth:`state`."""


@dataclass(frozen=True)
class RoundLoopConfig:
    """What a run asks of the rounds."""

    num_rounds: int
    seed: int
    participation: float | schedules.Schedule
    executor: str
    eval_every: int
    keep_models: bool


class FederatedSimulation:
    """A federation as its server sees it; the executor is where clients are. All that changes is in :meth:`state`."""

    def __init__(
        self,
        method: Method,
        task: Task,
        training: TrainingConfig,
        schedule: RoundLoopConfig,
        make_executor: MakeExecutor | None = None,
        ledger: PrivacyAccountant | None = None,
        timing: ClockConfig | None = None,
        room: MemoryBudget | None = None,
        selection: SelectionPolicy | None = None,
    ) -> None:
        """``make_executor`` takes the place of the schedule's executor: clients that are elsewhere.

        ``ledger``: what counts the cost of a method under differential privacy. ``timing``: devices and how long the
        server waits for them; without it rounds have no time, and everybody replies. ``room``: where what clients hold
        may lie; in memory without it. ``selection``: a policy of decision 0 in the place of the method's.
        """
        self.method, self.task, self.training, self.schedule = method, task, training, schedule
        self.ledger = ledger
        make = make_executor or EXECUTORS[schedule.executor]
        self.executor = make(method, task, training, schedule.seed, schedule.num_rounds)
        self.rounds_done = 0
        self.initial = task.init_params(schedule.seed)
        self.params = self.initial
        with torch.no_grad():
            self.server_state = method.init_server(task, self.params)
        self.keeps_local = keeps_local(method, task, schedule.keep_models)
        self.store = ClientStore(task.num_clients, self._fresh, room)
        self.later = self.executor if isinstance(self.executor, AsyncExecutor) else None
        self.clock = Clock(timing, schedule.seed, task.num_clients) if timing else None
        self.stream: ChunkedRound | None = None
        if isinstance(self.executor, InProcessExecutor) and not timing:
            self.stream = ChunkedRound(self.executor, self.store, self.keeps_local)
        self.selector = (
            ClientSelector(selection, task, schedule.seed, self.params) if selection else None
        )

    def run_round(self) -> RoundRecord:
        """One round, from the choice of clients to the new model."""
        started = time.perf_counter()
        s, task = self.schedule, self.task
        t = self.rounds_done + 1
        method, training = self.method.at(t, s.num_rounds), self.training.at(t, s.num_rounds)
        participation = schedules.value_at(s.participation, t, s.num_rounds)
        last = t == s.num_rounds
        evaluating = last or t % s.eval_every == 0
        splits = (
            tuple(split for split in ("test", "val") if task.has_split(split)) if evaluating else ()
        )

        server = Server(
            task, training, self.params, self.server_state, s.seed, t, s.num_rounds, participation
        )
        with torch.no_grad():
            tensor_ids, server.state = self._select(method, server)
            began = self.clock.now if self.clock else 0.0
            ids = tensor_ids.numpy()
            down, server.state = method.distribute(server, tensor_ids)
            intake, sent = self._exchange(t, tensor_ids, down, splits, participation)
            replies, here = intake.replies, intake.ids
            reply, asked = replies.stack, torch.from_numpy(here)
            sound, left_out = intake.arrived.clone(), dict[int, str]()
            if reply is not None:
                facts = replies.diagnostics(method, down.params)
                sound &= facts.is_finite
                left_out = {
                    place: why
                    for place, why in facts.violations.items()
                    if bool(intake.arrived[place])
                }
                sound[list(left_out)] = False
                times = _max_norm_ratio(method, task, down)
                left_out |= norm_outliers(
                    facts.norms, self._paths(asked, reply, training), sound, times
                )
                sound[list(left_out)] = False
            outcome = AggregationOutcome(server, torch.zeros_like(sound))
            if reply is not None and int(sound.sum()) >= max(1, self.executor.min_replies):
                sums = partial(
                    replies.partial_sums, method, down.params, self.executor.chunks(intake.cohort)
                )
                outcome = aggregate_with_fault_isolation(
                    method, server, asked, reply.update, sound, self.executor.min_replies, sums
                )
                server, left_out = outcome.server, left_out | outcome.blamed
            elif self.executor.min_replies > 1:
                outcome.skipped = (
                    f"{int(sound.sum())} usable replies, {self.executor.min_replies} are needed"
                )
            elif self.clock and not bool(intake.arrived.any()):
                outcome.skipped = "nobody's reply came before the round ended"
            sound[list(left_out)] = False
            judged = self.executor.evaluate_global(
                server.params, splits if method.has_global(task) else ()
            )
            received = self._bill(intake)
            replies.commit(outcome.rows)
            for part in intake.parts:  # a client whose update was of no use keeps what it held
                held = part.held if self.keeps_local else replace(part.held, local_params={})
                self.store.commit(part.ids, held, part.scores, outcome.rows[part.places])
            if self.selector:
                elapsed = self.clock.now - began if self.clock else 0.0
                self.selector.observe(t, tensor_ids, intake, elapsed, server.params)
        self.params, self.server_state, self.rounds_done = server.params, server.state, t

        come = intake.arrived
        if reply is not None and not bool(come.all()):
            here, sound = here[come.numpy()], sound[come]
            reply = pytree.index(replace(reply, scores={}), come) if len(here) else None
        stats: Params = {} if reply is None else pytree.to_dict(reply.hparams) or {}
        notes = {**(reply.logged if reply else {}), **server.logged}
        train = {name: _spread(value) for name, value in stats.items()}
        differ = any(value.min != value.max for value in train.values())
        return RoundRecord(
            round=t,
            clients=len(ids),
            seen=int((self.store.counts["rounds"] > 0).sum()),
            train=train,
            steps=None if reply is None or reply.num_steps is None else int(reply.num_steps.sum()),
            # Lists of a cohort say nothing without its ids.
            ids=here.tolist()
            if len(here) < min(task.num_clients, MAX_LISTED_CLIENTS + 1)
            else None,
            decisions={n: _plain(v) for n, v in stats.items()}
            if differ and len(here) <= MAX_LISTED_CLIENTS
            else None,
            bytes=Bytes(received, int(sent.sum())),
            clock=self.clock.now if self.clock else None,
            energy=intake.joules,
            staleness=None
            if reply is None or intake.staleness is None
            else _spread(intake.staleness),
            dropped=here[~sound.numpy()].tolist(),
            rejected={int(intake.ids[place]): reason for place, reason in sorted(left_out.items())},
            absent=intake.absent,
            skipped=outcome.skipped,
            privacy=self._privacy(ids, replies, int(outcome.rows.sum())),
            logged={name: _note(value) for name, value in notes.items()},
            stop=method.should_stop(server) or self._out_of_time(),
            # Last of all: another process may be judging meanwhile.
            test=self._scores("test", judged) if "test" in splits else None,
            val=self._scores("val", judged) if "val" in splits else None,
            seconds=time.perf_counter() - started,
        )

    def state_dict(self) -> State:
        """Everything that the next round depends on."""
        return self.server_state_dict() | {"store": self._stored()}

    def server_state_dict(self) -> State:
        """The same without what is kept of clients: see :meth:`kept`."""
        parts = {"privacy": self.ledger, "clock": self.clock, "selection": self.selector}
        more = {name: part.state() for name, part in parts.items() if part is not None}
        return {"params": self.params, "server": self.server_state, **more}

    def client_state_dict(self, ids: Ints) -> State:
        """What is kept of these clients, with their places among those seen."""
        trees = {**self.store.rows(ids), **self.executor.gather_state(ids)}
        return {"slots": torch.from_numpy(self.store.slots(ids)), "trees": trees}

    def load_state_dict(self, state: State, done: int) -> None:
        """The inverse of :meth:`state`; without a part ``store``, :meth:`take_back` must follow."""
        if gone := self.server_state.keys() - state["server"].keys():
            raise KeyError(min(gone))
        self.params, self.server_state, self.rounds_done = state["params"], state["server"], done
        if "store" in state:
            stored = state["store"]
            self.store.load(
                {
                    **stored,
                    "trees": self.executor.restore_state(stored["ids"].numpy(), stored["trees"]),
                }
            )
        if self.ledger is not None:
            self.ledger.load(state["privacy"])
        if self.clock is not None:
            self.clock.load(state["clock"])
        if self.selector is not None:
            self.selector.load(state["selection"])

    def load_client_shards(self, seen: int, parts: Iterable[tuple[Ints, State]]) -> None:
        """All clients seen, as :meth:`kept` gave them part by part."""
        self.store.reserve(seen)
        for ids, kept in parts:
            self.store.restore(
                ids, kept["slots"].numpy(), self.executor.restore_state(ids, kept["trees"])
            )

    def personal_models(self, ids: Ints | None = None) -> tuple[Ints, Params]:
        """Clients seen, or some of them, and the stack of their personal models."""
        ids = self.store.ids if ids is None else ids
        models = self._held(ids, "personal")
        if not models:
            return ids, self._held(ids, "local_params")
        # A client that has not made one yet (all its updates were dropped) would use the global model.
        unknown = ~rows_are_finite(models, len(ids))
        return ids, {
            name: torch.where(unknown.view(-1, *[1] * (value.dim() - 1)), self.params[name], value)
            for name, value in models.items()
        }

    def _held(self, ids: Ints, name: str) -> Params:
        tree: Params = (
            self.store.rows(ids, (name,)) | self.executor.gather_state(ids, (name,))
        ).get(name, {})
        return tree

    def _stored(self) -> State:
        stored = self.store.saved()
        kept = {**stored["trees"], **self.executor.gather_state(stored["ids"].numpy())}
        return {**stored, "trees": {name: kept[name] for name in sorted(kept)}}

    def _expect(self, round: int) -> None:
        """Whoever is drawn next by the seed; where a method chooses otherwise, rows are read when they are needed."""
        s = self.schedule
        share = schedules.value_at(s.participation, min(round, s.num_rounds), s.num_rounds)
        if share < 1:
            ids = rng.cohort(s.seed, round, self.task.num_clients, share)
            self.store.prefetch(ids)
            self.executor.prefetch(ids)

    def _fresh(self, ids: Tensor) -> ClientState:
        return self.executor.init_state(ids, self.initial, self.keeps_local)

    def _select(self, method: Method, server: Server) -> tuple[Tensor, State]:
        """Decision 0, among those who can be asked: by the method, or by the policy that takes its place."""
        everybody, (pool, count) = self.task.num_clients, self._pool(server.participation)
        plain = not (self.selector or (self.clock and self.clock.timing.overselection > 1))
        if "select_clients" in method.overridden_hooks or (pool is None and plain):
            ids, state = method.select_clients(server)
            _validate_cohort(ids, everybody, method)
            return (ids if pool is None else ids[torch.isin(ids, torch.from_numpy(pool))]), state
        there = torch.arange(everybody) if pool is None else torch.from_numpy(pool)
        selector = self.selector or ClientSelector(Uniform(), self.task, server.seed, server.params)
        return selector.choose(there, max(0, count), server.round), server.state

    def _pool(self, participation: float) -> tuple[Ints | None, int]:
        """Who can be asked, ``None`` for everybody, and how many are to be."""
        if self.clock:
            return self.clock.pool(participation)
        count = rng.cohort_size(self.task.num_clients, participation)
        if self.later is None or not len(away := self.later.in_flight_ids):
            return None, count
        idle = np.setdiff1d(np.arange(self.task.num_clients), away)
        return idle, min(count - len(away), len(idle))

    def _exchange(
        self,
        t: int,
        ids: Tensor,
        message: ServerMessage,
        splits: tuple[str, ...],
        participation: float,
    ) -> tuple[RoundReplies, Tensor]:
        """Ask these clients; gives what is in hand when the round ends, and the bytes that went down to each."""
        array: Ints = ids.numpy()
        if not len(array):
            nothing = torch.zeros(0, dtype=torch.int64)
            if self.later is not None:
                return self.later.collect(t, self.params), nothing
            assert self.clock is not None
            return self.clock.end(t, participation, None, self.params), nothing
        self._expect(t + 1)
        if self.stream is not None:
            replies = self.stream.run(t, ids, message, splits)
        else:
            replies = self.executor.run_clients(t, ids, message, self.store.held(array), splits)
        sent = down_bytes(message, self.task.blocks, len(array))
        if replies.unsent:
            sent *= torch.tensor([int(client) not in replies.unsent for client in array])
        self.store.count(array, {"down": sent})
        if self.later is not None:
            return self.later.collect(t, self.params), sent
        if self.clock is None or replies.stack is None:
            return RoundReplies.of(array, replies), sent
        training = self.training.at(t, self.schedule.num_rounds)
        steps = replies.stack.num_steps
        if steps is None:
            steps = self.task.num_steps(ids, torch.full_like(ids, training.epochs), training)
        started = StartedBatch(
            array, replies, steps * training.batch_size, replies.upload_bytes(), sent
        )
        return self.clock.end(t, participation, started, self.params), sent

    def _bill(self, intake: RoundReplies) -> int:
        """Bytes that came up, paid whether or not the update was of use."""
        replied = intake.arrived.long()
        size = intake.replies.upload_bytes()
        self.store.count(intake.ids, {"rounds": replied, "up": size * replied})
        return size * int(replied.sum())

    def _out_of_time(self) -> str | None:
        clock = self.clock
        return (
            f"the clock has reached {clock.timing.until}"
            if clock and clock.now >= clock.timing.until_seconds
            else None
        )

    def _paths(self, ids: Tensor, reply: ClientResult, training: TrainingConfig) -> Tensor:
        """Steps times rate of each of these clients, as far as it is told; else the number of its samples."""
        if reply.hparams is None:
            return self.task.num_examples(ids).double().clamp(min=1.0)
        steps = self.task.num_steps(ids, reply.hparams.epochs, training).double()
        return (steps * reply.hparams.lr.double()).clamp(min=1e-300)

    def _privacy(self, ids: Ints, replies: CohortResults, taken: int) -> PrivacySpent | None:
        if self.ledger is None:
            return None
        sent = np.array([client not in replies.unsent for client in ids.tolist()], bool)
        return self.ledger.after(ids[sent], taken)

    def _scores(self, split: str, judged: Judged) -> Evaluations:
        """The named evaluations on a split; clients' are of all clients seen so far."""
        known = self.store.scores
        clients = (
            {name: self._over_clients(values) for name, values in known[split].items()}
            if known
            else {}
        )
        if known and "personal" not in clients:
            clients["personal"] = clients["trained"]  # the personal model is the trained one
        whole = judged().get(split)
        return Evaluations(
            global_=NOTHING
            if whole is None
            else Scores({name: float(value) for name, value in whole.items()}),
            **clients,
        )

    def _over_clients(self, values: Params) -> Scores:
        means = {metric: float(value.double().nanmean()) for metric, value in values.items()}
        head = values[self.task.metric].double()
        head = head[torch.isfinite(head)]
        if not len(head):
            return Scores({**means, "std": None, "p10": None})
        return Scores(
            {
                **means,
                "std": float(head.std(correction=0)),
                "p10": float(np.quantile(head.numpy(), 0.1)),
            }
        )


def _max_norm_ratio(method: Method, task: Task, message: ServerMessage) -> float:
    """How many times as long as nearly all others' a client's change may be.

    Changes compare best where all clients start what they upload from one model. Agents that start from models of their
    own go honestly as far as their environments take them.
    """
    uploaded = set(method.shared_param_names(task))
    blocks = [block for block, names in task.blocks.items() if uploaded & set(names)]
    if "receive" not in method.overridden_hooks and all(
        message.sent_blocks[block] is True for block in blocks
    ):
        return MAX_NORM_RATIO
    return MAX_NORM_RATIO_STATEFUL if isinstance(task, SupervisedTask) else math.inf


def _validate_cohort(ids: Tensor, clients: int, method: Method) -> Ints:
    """Decision 0 as an array; a method of one's own may get it wrong."""
    array: Ints = ids.numpy()
    if (
        ids.dtype != torch.int64
        or not len(array)
        or (np.diff(array) <= 0).any()
        or array[0] < 0
        or array[-1] >= clients
    ):
        raise UsageError(
            f"{method.name}.select must give the clients of the round as whole numbers from 0 to {clients - 1}, "
            f"ascending, each once, and at least one: it gave {ids.dtype} {array[:10].tolist()}"
        )
    return array


def _spread(value: Tensor) -> MeanMinMax:
    value = value.double()
    return MeanMinMax(float(value.mean()), float(value.min()), float(value.max()))


def _plain(value: Tensor) -> list[float]:
    return [float(f"{number:.6g}") for number in value.tolist()]


def _note(value: Any) -> Any:
    """A number as it is; one number per client as a list, or as their spread when there are many."""
    if not isinstance(value, Tensor):
        return value
    if value.dim() == 0:
        return float(value)
    return _plain(value) if len(value) <= MAX_LISTED_CLIENTS else asdict(_spread(value))


def down_bytes(message: ServerMessage, blocks: Blocks, clients: int) -> Tensor:
    """Per client: the blocks sent, what the method broadcasts, and proposals if there are any."""
    common = tree_bytes(message.broadcast) + tree_bytes(message.per_client, stacked=True)
    if message.hparams is not None:
        common += tree_bytes(message.hparams, stacked=True)
    total = torch.full((clients,), common, dtype=torch.int64)
    for block, names in blocks.items():
        size = tree_bytes({name: message.params[name] for name in names})
        total += size * torch.as_tensor(message.sent_blocks[block]).long()
    return total
