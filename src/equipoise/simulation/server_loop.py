"""The server loop: select, distribute, run clients, validate, aggregate, commit and record."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from equipoise.client_selection.policies import Uniform
from equipoise.clock.config import ClockConfig
from equipoise.config.schema import Schedule, value_at
from equipoise.core import (
    Blocks,
    ClientState,
    ClientUpdate,
    LocalHParams,
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
from equipoise.core.method import hparams_like
from equipoise.core.report_validation import UNBOUNDED, InfluenceBounds, hparam_violations
from equipoise.data.federated_dataset import Ints
from equipoise.records.rounds import (
    INFLUENCE_GUARD,
    Bytes,
    MeanMinMax,
    PrivacySpent,
    RoundRecord,
)
from equipoise.records.scores import NOTHING, Evaluations, Scores
from equipoise.simulation.aggregation_guard import (
    AGENT_BOUNDS,
    COMMON_START_BOUNDS,
    OWN_RATE_BOUNDS,
    STATEFUL_BOUNDS,
    Aggregation,
    AggregationOutcome,
    UpdateDiagnostics,
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
    CohortRequest,
    CohortResults,
    InProcessExecutor,
    PendingScores,
    RoundReplies,
    run_and_commit,
)
from equipoise.utils import pytree, rng
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import tree_bytes

MIN_STEP_BUDGET = 1e-300  # avoids division by zero
MAX_LISTED_CLIENTS = 1000  # cohorts up to this size have per-client decisions in the log
MAX_LISTED_FACTORS = 200  # clients with limited influence that a round's log names


class PrivacyAccountant(Protocol):
    """Counts the cost of a method under differential privacy."""

    def after(self, cohort: Ints, replies: int) -> PrivacySpent:
        """Count one round.

        Args:
            cohort: The clients that were asked.
            replies: The number of replies that were used.

        Returns:
            The privacy budget that is spent so far.
        """

    def state(self) -> State:
        """Return the state for a checkpoint."""

    def load(self, state: State) -> None:
        """Restore what `state` returned."""


@dataclass(frozen=True)
class RoundLoopConfig:
    """Options of the server loop.

    Attributes:
        num_rounds: Rounds of the run.
        seed: Seed of the run.
        participation: Fraction of the clients that a round asks.
        executor: A key of `EXECUTORS`.
        eval_every: Rounds between two evaluations; the last round is always evaluated.
        keep_models: Whether the models of clients are kept even if the method does not need them.
    """

    num_rounds: int
    seed: int
    participation: float | Schedule
    executor: str
    eval_every: int
    keep_models: bool


class _CurrentRound(NamedTuple):
    """What all steps of a round read.

    Attributes:
        method: The method with the values of its scheduled options in this round.
        server: The server as the method's hooks see it.
        splits: The splits to evaluate on; empty in a round without evaluation.
        started: `time.perf_counter()` at the start.
    """

    method: Method
    server: Server
    splits: tuple[str, ...]
    started: float


class _Exchange(NamedTuple):
    """What the server has in hand when the round ends.

    Attributes:
        replies: The replies of the clients.
        bytes_up: Bytes of all uploads.
        bytes_down: Bytes that were sent to all clients.
        seconds: Simulated seconds that the round took; 0 without a clock.
    """

    replies: RoundReplies
    bytes_up: int
    bytes_down: int
    seconds: float


@dataclass
class _Validation:
    """Which replies may be used.

    Attributes:
        accepted: Mask `[R]` over the replies.
        diagnostics: Norms of the replies; None without a reply.
        bounds: How far one client may move the model.
        rejected: Reason by row of a reply that arrived but must not be used.
        guards: How many replies each guard left out, by its name.
    """

    accepted: Tensor
    diagnostics: UpdateDiagnostics | None = None
    bounds: InfluenceBounds = UNBOUNDED
    rejected: dict[int, str] = field(default_factory=dict)
    guards: dict[str, int] = field(default_factory=dict)

    def reject(self, guard: str, reasons: dict[int, str]) -> None:
        """Leave out replies, except those that another guard left out before.

        Args:
            guard: Name of the guard, as the log counts it.
            reasons: Reason by row of the reply.
        """
        new = {row: reason for row, reason in reasons.items() if bool(self.accepted[row])}
        if new:
            self.accepted[list(new)] = False
            self.rejected |= new
            self.guards[guard] = len(new)


class FederatedSimulation:
    """Run federated rounds of one method on one task.

    Everything that the next round depends on is in `state_dict()`.
    """

    def __init__(
        self,
        method: Method,
        task: Task,
        training: TrainingConfig,
        schedule: RoundLoopConfig,
        make_executor: MakeExecutor | None = None,
        accountant: PrivacyAccountant | None = None,
        clock_config: ClockConfig | None = None,
        memory_budget: MemoryBudget | None = None,
        selection_policy: SelectionPolicy | None = None,
    ) -> None:
        """Build the executor, the initial model and the client store.

        Args:
            method: The federated method.
            task: The clients, their data and the model.
            training: Options of local training.
            schedule: Options of the server loop.
            make_executor: Builds an executor in place of `schedule.executor`, for remote clients.
            accountant: Counts the cost under differential privacy.
            clock_config: Devices, and how long the server waits for them. Without it rounds have no
                duration and all clients reply.
            memory_budget: Where the client states are stored; in memory by default.
            selection_policy: Selects clients in place of the method.
        """
        self.method = method
        self.task = task
        self.training = training
        self.schedule = schedule
        self.accountant = accountant
        make = make_executor or EXECUTORS[schedule.executor]
        self.executor = make(method, task, training, schedule.seed, schedule.num_rounds)
        self.rounds_done = 0
        self.initial_params = task.init_params(schedule.seed)
        self.params = self.initial_params
        with torch.no_grad():
            self.server_state = method.init_server(task, self.params)
        self.keeps_local = keeps_local(method, task, schedule.keep_models)
        self.store = ClientStore(task.info.num_clients, self._init_clients, memory_budget)
        self.async_executor = self.executor if isinstance(self.executor, AsyncExecutor) else None
        self.clock = (
            Clock(clock_config, schedule.seed, task.info.num_clients) if clock_config else None
        )
        # Without a clock every reply comes in time, so that new states can be stored at once.
        self.commits_early = self.clock is None and _uploads_nothing(method, task)
        self.selector = (
            ClientSelector(selection_policy, task, schedule.seed, self.params)
            if selection_policy
            else None
        )

    def run_round(self) -> RoundRecord:
        """Run one round and return its record.

        Returns:
            The record that becomes one line of `rounds.jsonl`.
        """
        current = self._begin_round()
        with torch.no_grad():
            # Decision 0: who takes part.
            client_ids = self._select_clients(current)

            # Decision 4: what each client is sent.
            message = self._distribute(current, client_ids)

            # Decisions 1, 2 and 5, at the clients: configure, train, upload, personal model.
            exchange = self._run_clients(current, client_ids, message)

            # Replies that are late, malformed, not finite or far too large are left out, and named.
            validation = self._validate(current, message, exchange.replies)

            # Decision 3: the new global model.
            outcome = self._aggregate(current, message, exchange.replies, validation)

            # Another process may evaluate the new model while this one commits the round.
            global_scores = self._start_global_evaluation(current, outcome)
            self._commit(client_ids, exchange, outcome)
        return self._evaluate_and_record(
            current, client_ids, exchange, validation, outcome, global_scores
        )

    def _begin_round(self) -> _CurrentRound:
        """Return the method and the server as they are in the next round."""
        started = time.perf_counter()
        config = self.schedule
        round = self.rounds_done + 1
        server = Server(
            self.task,
            self.training.at(round, config.num_rounds),
            self.params,
            self.server_state,
            config.seed,
            round,
            config.num_rounds,
            value_at(config.participation, round, config.num_rounds),
        )
        method = self.method.at(round, config.num_rounds)
        splits: tuple[str, ...] = ()
        is_last = round == config.num_rounds or method.ends_after(server)
        if is_last or round % config.eval_every == 0:
            splits = tuple(split for split in ("test", "val") if self.task.has_split(split))
        return _CurrentRound(method, server, splits, started)

    # ---------------------------------------------------------------- step 1: select

    def _select_clients(self, current: _CurrentRound) -> Tensor:
        """Choose among the available clients, by the selection policy or by the method.

        A method that overrides `select_clients` always chooses by itself.
        """
        method = current.method
        server = current.server
        pool, count = self._available_clients(server.participation)
        overselects = self.clock is not None and self.clock.config.overselection > 1
        is_plain_draw = pool is None and self.selector is None and not overselects
        if is_plain_draw or "select_clients" in method.overridden_hooks:
            ids, server.state = method.select_clients(server)
            _validate_cohort(ids, self.task.info.num_clients, method)
            if pool is None:
                return ids
            return ids[torch.isin(ids, torch.from_numpy(pool))]
        available = torch.arange(self.task.info.num_clients)
        if pool is not None:
            available = torch.from_numpy(pool)
        selector = self.selector
        if selector is None:
            selector = ClientSelector(Uniform(), self.task, server.seed, server.params)
        return selector.choose(available, max(0, count), server.round)

    def _available_clients(self, participation: float) -> tuple[Ints | None, int]:
        """Return the clients that can be asked (None for all), and how many to ask."""
        if self.clock is not None:
            return self.clock.pool(participation)
        count = rng.cohort_size(self.task.info.num_clients, participation)
        if self.async_executor is None:
            return None, count
        in_flight = self.async_executor.in_flight_ids
        if not len(in_flight):
            return None, count
        idle = np.setdiff1d(np.arange(self.task.info.num_clients), in_flight)
        return idle, min(count - len(in_flight), len(idle))

    # ---------------------------------------------------------------- step 2: distribute

    def _distribute(self, current: _CurrentRound, client_ids: Tensor) -> ServerMessage:
        """Let the method write the message to the selected clients."""
        server = current.server
        message, server.state = current.method.distribute(server, client_ids)
        return message

    # ---------------------------------------------------------------- step 3: run clients

    def _run_clients(
        self, current: _CurrentRound, client_ids: Tensor, message: ServerMessage
    ) -> _Exchange:
        """Run the selected clients until the round ends, and count the bytes of both directions.

        Uploads are paid for whether or not they are used.
        """
        clock_start = self._clock_seconds()
        bytes_down = torch.zeros(0, dtype=torch.int64)
        results = None
        if len(client_ids):
            self._prefetch(current.server.round + 1)
            results = self._compute_clients(current, client_ids, message)
            bytes_down = _download_bytes(message, self.task.info.blocks, client_ids, results)
            self.store.count(client_ids.numpy(), {"down": bytes_down})
        replies = self._end_of_round(current.server, client_ids, results, bytes_down)
        arrived = replies.arrived.long()
        upload_size = replies.results.upload_bytes()
        self.store.count(replies.ids, {"rounds": arrived, "up": upload_size * arrived})
        return _Exchange(
            replies,
            bytes_up=upload_size * int(arrived.sum()),
            bytes_down=int(bytes_down.sum()),
            seconds=self._clock_seconds() - clock_start,
        )

    def _compute_clients(
        self, current: _CurrentRound, client_ids: Tensor, message: ServerMessage
    ) -> CohortResults:
        """Run the client half of the method for all selected clients."""
        request = CohortRequest(
            current.server.round, client_ids, message, ClientState(), current.splits
        )
        if self.commits_early and isinstance(self.executor, InProcessExecutor):
            return run_and_commit(self.executor, self.store, request)
        client_state = self.store.client_state(client_ids.numpy())
        return self.executor.run_clients(request._replace(client_state=client_state))

    def _end_of_round(
        self, server: Server, ids: Tensor, results: CohortResults | None, bytes_down: Tensor
    ) -> RoundReplies:
        """Return the replies that the server has when the round ends.

        Args:
            server: The server of this round.
            ids: The clients that were asked, `[K]`.
            results: What they computed; None if no client was asked.
            bytes_down: Bytes that were sent to each of them, `[K]`.
        """
        if self.async_executor is not None:
            return self.async_executor.collect(server.round, self.params)
        if results is not None and (self.clock is None or results.stack is None):
            return RoundReplies.from_results(ids.numpy(), results)
        assert self.clock is not None
        started = None
        if results is not None:
            started = self._started_batch(server.training, ids, results, bytes_down)
        return self.clock.end(server.round, server.participation, started, self.params)

    def _started_batch(
        self, training: TrainingConfig, ids: Tensor, results: CohortResults, bytes_down: Tensor
    ) -> StartedBatch:
        """Return what the clock needs to know of the clients that start in this round."""
        assert results.stack is not None
        steps = results.stack.num_steps
        if steps is None:
            steps = self.task.num_steps(ids, torch.full_like(ids, training.epochs), training)
        samples = steps * training.batch_size
        return StartedBatch(ids.numpy(), results, samples, results.upload_bytes(), bytes_down)

    def _prefetch(self, round: int) -> None:
        """Read ahead the state of the clients that the seed draws for a round.

        Where a method selects others, their state is read when it is needed.
        """
        config = self.schedule
        participation = value_at(
            config.participation, min(round, config.num_rounds), config.num_rounds
        )
        if participation < 1:
            ids = rng.sample_cohort(config.seed, round, self.task.info.num_clients, participation)
            self.store.prefetch(ids)
            self.executor.prefetch(ids)

    def _clock_seconds(self) -> float:
        """Return the simulated time, 0 without a clock."""
        return 0.0 if self.clock is None else self.clock.now

    # ---------------------------------------------------------------- step 4: validate

    def _validate(
        self, current: _CurrentRound, message: ServerMessage, replies: RoundReplies
    ) -> _Validation:
        """Leave out replies that are late, not finite, out of range or far too large.

        Every bound follows from what the server configured, asked for and knew before the round,
        and from the cohort as a whole; nothing that a client says widens its own.
        """
        results = replies.results
        if results.stack is None:
            return _Validation(replies.arrived.clone())
        ids = torch.from_numpy(replies.ids)
        diagnostics = results.diagnostics(current.method, message, ids, self.executor.memory)
        proposed = self._proposed_hparams(current, replies, message)
        allowed = self._allowed_hparams(current, replies, proposed, message.hparams is not None)
        bounds = _influence_bounds(current.method, self.task, message, allowed)
        validation = _Validation(replies.arrived.clone(), diagnostics, bounds)

        is_not_finite = validation.accepted & ~diagnostics.is_finite
        if bool(is_not_finite.any()):
            validation.guards["not finite"] = int(is_not_finite.sum())
            validation.accepted &= diagnostics.is_finite

        validation.reject("range", diagnostics.violations)
        if results.stack.hparams is not None:
            violations = hparam_violations(results.stack.hparams, *allowed)
            validation.reject("rate or epochs", violations)

        def step_budgets() -> Tensor:
            steps = self.task.num_steps(ids, proposed.epochs, current.server.training).double()
            return (steps * proposed.lr.double()).clamp(min=MIN_STEP_BUDGET)

        validation.reject(
            "norm",
            norm_outliers(diagnostics.norms, step_budgets, validation.accepted, bounds.norm_ratio),
        )
        return validation

    def _proposed_hparams(
        self, current: _CurrentRound, replies: RoundReplies, message: ServerMessage
    ) -> LocalHParams:
        """Return epochs and rate `[R]` that the server proposed to each client that replied."""
        count = len(replies.ids)
        proposed = message.hparams
        if proposed is not None and len(proposed.lr) == replies.cohort_size:
            return pytree.index(proposed, replies.results.arrived)
        training = current.server.training
        return LocalHParams(
            torch.full((count,), training.epochs, dtype=torch.int64),
            torch.full((count,), training.lr, dtype=torch.float64),
        )

    def _allowed_hparams(
        self,
        current: _CurrentRound,
        replies: RoundReplies,
        proposed: LocalHParams,
        server_chose: bool,
    ) -> tuple[LocalHParams, LocalHParams]:
        """Return the least and the largest epochs and rate `[R]` that each client may have used.

        A reply that is s rounds old was asked for with the schedule's values of that round.
        """
        server = current.server
        lowest, highest = current.method.allowed_hparams(
            self.task, proposed, server.round, server.num_rounds, server_chose
        )
        if replies.staleness is None:
            return lowest, highest
        for age in range(1, int(replies.staleness.max()) + 1):
            round = server.round - age
            training = self.training.at(round, server.num_rounds)
            earlier = hparams_like(proposed, training.epochs, training.lr)
            low, high = self.method.at(round, server.num_rounds).allowed_hparams(
                self.task, earlier, round, server.num_rounds, server_chose
            )
            lowest = pytree.map_leaves(torch.minimum, lowest, low)
            highest = pytree.map_leaves(torch.maximum, highest, high)
        return lowest, highest

    # ---------------------------------------------------------------- step 5: aggregate

    def _aggregate(
        self,
        current: _CurrentRound,
        message: ServerMessage,
        replies: RoundReplies,
        validation: _Validation,
    ) -> AggregationOutcome:
        """Compute the new global model, or leave it as it is where too few replies are usable."""
        results = replies.results
        accepted = validation.accepted
        min_replies = self.executor.min_replies
        num_accepted = int(accepted.sum())
        if validation.diagnostics is not None and num_accepted >= max(1, min_replies):
            return aggregate_with_fault_isolation(
                Aggregation(
                    current.method,
                    current.server,
                    torch.from_numpy(replies.ids),
                    results,
                    message.params,
                    self.executor.chunks(replies.cohort_size),
                    validation.diagnostics,
                    validation.bounds,
                ),
                accepted,
                min_replies,
            )
        outcome = AggregationOutcome(current.server, torch.zeros_like(accepted))
        if min_replies > 1:
            outcome.skipped = f"{num_accepted} usable replies, {min_replies} are needed"
        elif self.clock is not None and not bool(replies.arrived.any()):
            outcome.skipped = "nobody's reply came before the round ended"
        return outcome

    # ---------------------------------------------------------------- step 6: commit

    def _commit(self, client_ids: Tensor, exchange: _Exchange, outcome: AggregationOutcome) -> None:
        """Adopt the new server and the new states of the clients whose replies were used.

        A client whose update was not used keeps the state that it had before the round.
        """
        replies = exchange.replies
        server = outcome.server
        is_counted = outcome.accepted
        if server.uncommitted:
            left_out = np.isin(replies.ids, list(server.uncommitted))
            is_counted = is_counted & torch.from_numpy(~left_out)
        replies.results.commit(is_counted)
        for group in replies.start_groups:
            client_state = group.client_state
            if not self.keeps_local:
                client_state = replace(client_state, local_params={})
            self.store.commit(group.ids, client_state, group.scores, is_counted[group.rows])
        if self.selector is not None:
            self.selector.observe(
                server.round, client_ids, replies, exchange.seconds, server.params
            )
        self.params = server.params
        self.server_state = server.state
        self.rounds_done = server.round

    # ---------------------------------------------------------------- step 7: evaluate and record

    def _start_global_evaluation(
        self, current: _CurrentRound, outcome: AggregationOutcome
    ) -> PendingScores:
        """Start to evaluate the global model, if there is one, on the server's own sets."""
        splits = current.splits if current.method.has_global(self.task) else ()
        return self.executor.evaluate_global(outcome.server.params, splits)

    def _evaluate_and_record(
        self,
        current: _CurrentRound,
        client_ids: Tensor,
        exchange: _Exchange,
        validation: _Validation,
        outcome: AggregationOutcome,
        global_scores: PendingScores,
    ) -> RoundRecord:
        """Collect the scores and describe the round."""
        replies = exchange.replies
        rejected = validation.rejected | outcome.blamed
        is_dropped = ~validation.accepted
        is_dropped[list(outcome.blamed)] = True
        is_dropped &= replies.arrived
        guards = dict(validation.guards)
        if outcome.blamed:
            guards["fault"] = len(outcome.blamed)
        shrunk = outcome.server.shrunk
        if shrunk:
            guards[INFLUENCE_GUARD] = len(shrunk)
        return RoundRecord(
            round=outcome.server.round,
            clients=len(client_ids),
            seen=int((self.store.counts["rounds"] > 0).sum()),
            bytes=Bytes(exchange.bytes_up, exchange.bytes_down),
            clock=None if self.clock is None else self.clock.now,
            energy=replies.joules,
            dropped=replies.ids[is_dropped.numpy()].tolist(),
            rejected={int(replies.ids[row]): reason for row, reason in sorted(rejected.items())},
            guards=guards,
            shrunk=_least_factors(shrunk),
            absent=replies.absent,
            skipped=outcome.skipped,
            privacy=self._privacy_spent(client_ids, replies.results, outcome),
            stop=current.method.should_stop(outcome.server) or self._time_limit_reached(),
            **self._describe_training(replies, outcome.server),
            # Last of all, because another process may still be evaluating the global model.
            test=self._scores("test", current.splits, global_scores),
            val=self._scores("val", current.splits, global_scores),
            seconds=time.perf_counter() - current.started,
        )

    def _describe_training(self, replies: RoundReplies, server: Server) -> dict[str, Any]:
        """Return the fields of a record that describe how the clients that replied trained."""
        ids = replies.ids
        result = replies.results.stack
        if result is not None and not bool(replies.arrived.all()):
            ids = ids[replies.arrived.numpy()]
            light = replace(result, update=ClientUpdate({}), client_state=ClientState(), scores={})
            result = pytree.index(light, replies.arrived) if len(ids) else None
        # A list of the whole federation says nothing; a longer one is too long for a log.
        is_listed = len(ids) < min(self.task.info.num_clients, MAX_LISTED_CLIENTS + 1)
        fields: dict[str, Any] = {"ids": ids.tolist() if is_listed else None, "train": {}}
        logged = dict(server.logged)
        if result is not None:
            logged = {**result.logged, **server.logged}
            hparams: Params = pytree.to_dict(result.hparams) or {}
            train = {name: _mean_min_max(value) for name, value in hparams.items()}
            fields["train"] = train
            if result.num_steps is not None:
                fields["steps"] = int(result.num_steps.sum())
            if replies.staleness is not None:
                fields["staleness"] = _mean_min_max(replies.staleness)
            differs = any(value.min != value.max for value in train.values())
            if differs and len(ids) <= MAX_LISTED_CLIENTS:
                fields["decisions"] = {name: _rounded(value) for name, value in hparams.items()}
        fields["logged"] = {name: _loggable(value) for name, value in logged.items()}
        return fields

    def _privacy_spent(
        self, client_ids: Tensor, results: CohortResults, outcome: AggregationOutcome
    ) -> PrivacySpent | None:
        """Return the privacy budget that is spent after this round."""
        if self.accountant is None:
            return None
        ids = client_ids.numpy()
        was_sent = np.array([client not in results.unsent for client in ids.tolist()], bool)
        return self.accountant.after(ids[was_sent], int(outcome.accepted.sum()))

    def _time_limit_reached(self) -> str | None:
        """Return the reason to stop if the simulated time is over."""
        clock = self.clock
        if clock is None or clock.now < clock.until_seconds:
            return None
        return f"the clock has reached {clock.config.until}"

    def _scores(
        self, split: str, splits: tuple[str, ...], global_scores: PendingScores
    ) -> Evaluations | None:
        """Return the named evaluations on a split; the clients' are of all clients seen so far."""
        if split not in splits:
            return None
        client_scores = self.store.scores
        clients: dict[str, Scores] = {}
        if client_scores:
            clients = {
                name: self._over_clients(values) for name, values in client_scores[split].items()
            }
            # Without a personal model of its own, a client uses the one that it trained.
            clients.setdefault("personal", clients["trained"])
        metrics = global_scores().get(split)
        if metrics is None:
            return Evaluations(global_=NOTHING, **clients)
        server_scores = Scores({name: float(value) for name, value in metrics.items()})
        return Evaluations(global_=server_scores, **clients)

    def _over_clients(self, values: Params) -> Scores:
        """Return mean, standard deviation and 10th percentile of scores `[K]`."""
        scores: dict[str, float | None] = {
            metric: float(value.double().nanmean()) for metric, value in values.items()
        }
        primary = values[self.task.info.metric].double()
        is_finite = np.isfinite(primary.numpy())
        if not is_finite.all():
            primary = primary[torch.from_numpy(is_finite)]
        scores["std"] = None
        scores["p10"] = None
        if len(primary):
            scores["std"] = float(primary.std(correction=0))
            scores["p10"] = _first_decile(primary)
        return Scores(scores)

    # ---------------------------------------------------------------- state

    def state_dict(self) -> State:
        """Return everything that the next round depends on."""
        return self.server_state_dict() | {"store": self._store_state()}

    def server_state_dict(self) -> State:
        """Return the state without that of the clients: see `client_state_dict`."""
        state: State = {"params": self.params, "server": self.server_state}
        if self.accountant is not None:
            state["privacy"] = self.accountant.state()
        if self.clock is not None:
            state["clock"] = self.clock.state()
        if self.selector is not None:
            state["selection"] = self.selector.state()
        return state

    def client_state_dict(self, ids: Ints) -> State:
        """Return the state of some clients, with their slots in the store."""
        trees = {**self.store.rows(ids), **self.executor.gather_state(ids)}
        return {"slots": torch.from_numpy(self.store.slots(ids)), "trees": trees}

    def load_state_dict(self, state: State, rounds_done: int) -> None:
        """Restore what `state_dict` returned.

        Args:
            state: The state. Without its part `store`, `load_client_shards` must follow.
            rounds_done: The number of rounds that are done.

        Raises:
            KeyError: An entry of the method's server state is missing.
        """
        missing = self.server_state.keys() - state["server"].keys()
        if missing:
            raise KeyError(min(missing))
        self.params = state["params"]
        self.server_state = state["server"]
        self.rounds_done = rounds_done
        if "store" in state:
            store = state["store"]
            trees = self.executor.restore_state(store["ids"].numpy(), store["trees"])
            self.store.load({**store, "trees": trees})
        if self.accountant is not None:
            self.accountant.load(state["privacy"])
        if self.clock is not None:
            self.clock.load(state["clock"])
        if self.selector is not None:
            self.selector.load(state["selection"])

    def load_client_shards(self, num_seen: int, parts: Iterable[tuple[Ints, State]]) -> None:
        """Restore all clients, part by part.

        Args:
            num_seen: The number of clients that have a state.
            parts: Ids and what `client_state_dict` returned for them.
        """
        self.store.reserve(num_seen)
        for ids, state in parts:
            trees = self.executor.restore_state(ids, state["trees"])
            self.store.restore(ids, state["slots"].numpy(), trees)

    def personal_models(self, ids: Ints | None = None) -> tuple[Ints, Params]:
        """Return the personal models of clients.

        Args:
            ids: The clients; None for all that took part so far.

        Returns:
            The ids and their models, stacked `[K, ...]`.
        """
        if ids is None:
            ids = self.store.ids
        models = self._client_tree(ids, "personal")
        if not models:
            return ids, self._client_tree(ids, "local_params")
        # A client whose updates were all dropped has no personal model: it uses the global one.
        is_missing = ~rows_are_finite(models, len(ids))
        return ids, {
            name: torch.where(
                is_missing.view(-1, *[1] * (value.dim() - 1)), self.params[name], value
            )
            for name, value in models.items()
        }

    def _client_tree(self, ids: Ints, name: str) -> Params:
        """Return one part of the state of some clients; empty if nothing is stored under it."""
        stored = self.store.rows(ids, (name,)) | self.executor.gather_state(ids, (name,))
        tree: Params = stored.get(name, {})
        return tree

    def _store_state(self) -> State:
        """Return the state of all clients, with the parts that executors keep."""
        store = self.store.state_dict()
        trees = {**store["trees"], **self.executor.gather_state(store["ids"].numpy())}
        return {**store, "trees": {name: trees[name] for name in sorted(trees)}}

    def _init_clients(self, ids: Tensor) -> ClientState:
        """Return the state of clients before their first round."""
        return self.executor.init_state(ids, self.initial_params, self.keeps_local)


def _uploads_nothing(method: Method, task: Task) -> bool:
    """Return whether clients send the server neither parameters nor reports."""
    return not (
        method.shared_param_names(task)
        or method.report_ranges
        or "upload" in method.overridden_hooks
    )


def _least_factors(shrunk: dict[int, float]) -> dict[int, float]:
    """Return the factors of the clients that lost most influence, as a log shows them."""
    most = sorted(shrunk, key=lambda client: shrunk[client])[:MAX_LISTED_FACTORS]
    return {client: float(f"{shrunk[client]:.3g}") for client in sorted(most)}


def _influence_bounds(
    method: Method,
    task: Task,
    message: ServerMessage,
    allowed: tuple[LocalHParams, LocalHParams],
) -> InfluenceBounds:
    """Return how far one client may move the model.

    Norms compare best where all clients start from one model. Agents that start from models of
    their own move as far as their environments take them, so that they have no bound.
    """
    lowest, highest = allowed
    has_own_rates = lowest is not highest and bool((lowest.lr < highest.lr).any())
    if has_own_rates and isinstance(task, SupervisedTask):
        return OWN_RATE_BOUNDS
    uploaded = set(method.shared_param_names(task))
    blocks = [block for block, names in task.info.blocks.items() if uploaded & set(names)]
    if "receive" not in method.overridden_hooks and all(
        message.sent_blocks[block] is True for block in blocks
    ):
        bounds = COMMON_START_BOUNDS if isinstance(task, SupervisedTask) else AGENT_BOUNDS
    else:
        bounds = STATEFUL_BOUNDS if isinstance(task, SupervisedTask) else UNBOUNDED
    # Where a block stays at the clients, changes of the others depend on it.
    keeps_block = any(
        message.sent_blocks[block] is False for block, names in task.info.blocks.items() if names
    )
    return bounds._replace(weighs_norms=not keeps_block)


def _first_decile(values: Tensor) -> float:
    """Return the first decile `[K]`, interpolated as by `numpy.quantile`.

    NumPy's general form takes 2 % of a round of W1.
    """
    ordered = np.sort(values.numpy())
    place = 0.1 * (len(ordered) - 1)
    below = int(place)
    low = float(ordered[below])
    high = float(ordered[min(below + 1, len(ordered) - 1)])
    share = place - below
    if share < 0.5:
        return low + (high - low) * share
    return high - (high - low) * (1 - share)


def _validate_cohort(ids: Tensor, clients: int, method: Method) -> None:
    """Check the selection of a method, which a user may have written."""
    array: Ints = ids.numpy()
    if (
        ids.dtype != torch.int64
        or not len(array)
        or (np.diff(array) <= 0).any()
        or array[0] < 0
        or array[-1] >= clients
    ):
        raise UsageError(
            f"{method.name}.select_clients must give the clients of the round as whole numbers "
            f"from 0 to {clients - 1}, ascending, each once, and at least one: it gave "
            f"{ids.dtype} {array[:10].tolist()}"
        )


def _mean_min_max(value: Tensor) -> MeanMinMax:
    """Summarise one number per client."""
    value = value.double()
    return MeanMinMax(float(value.mean()), float(value.min()), float(value.max()))


def _rounded(value: Tensor) -> list[float]:
    """Return numbers with six significant digits, as a log shows them."""
    return [float(f"{number:.6g}") for number in value.tolist()]


def _loggable(value: Any) -> Any:
    """Return a number as it is, and one number per client as a list or, if long, a summary."""
    if not isinstance(value, Tensor):
        return value
    if value.dim() == 0:
        return float(value)
    if len(value) <= MAX_LISTED_CLIENTS:
        return _rounded(value)
    return asdict(_mean_min_max(value))


def _download_bytes(
    message: ServerMessage, blocks: Blocks, client_ids: Tensor, results: CohortResults
) -> Tensor:
    """Return the bytes `[K]` sent to each client; 0 for a client that could not be reached.

    They are the blocks, or rows of them, that are sent, what the method broadcasts or sends to each
    client, and the proposed hyper-parameters.
    """
    common = tree_bytes(message.broadcast) + tree_bytes(message.per_client, stacked=True)
    if message.hparams is not None:
        common += tree_bytes(message.hparams, stacked=True)
    varying = torch.zeros(len(client_ids), dtype=torch.int64)
    for block, names in blocks.items():
        sent = message.sent_blocks[block]
        whole_params = {
            name: message.params[name] for name in names if name not in message.sent_rows
        }
        size = tree_bytes(whole_params)
        if sent is True:
            common += size
        elif sent is not False:
            varying += size * sent.long()
        row_bytes: dict[Tensor, int] = {}  # parameters often share the rows that are sent
        for name in message.sent_rows.keys() & set(names):
            value = message.params[name]
            rows = message.sent_rows[name]
            row_bytes[rows] = row_bytes.get(rows, 0) + value.nbytes // max(len(value), 1)
        for rows, size in row_bytes.items():
            varying += (rows[:, 1] - rows[:, 0]) * size * torch.as_tensor(sent).long()
    total = varying + common
    if results.unsent:
        total *= torch.tensor([client not in results.unsent for client in client_ids.tolist()])
    return total
