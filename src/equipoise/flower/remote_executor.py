"""Executor of remote clients: sends each a message, then checks and stacks the replies."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from equipoise.core import (
    ClientResult,
    ClientState,
    ClientUpdate,
    Method,
    Params,
    State,
    Task,
    TrainingConfig,
)
from equipoise.core.report_validation import believed_sizes
from equipoise.experiment.evaluation import comparison_columns, own_scores
from equipoise.experiment.row_outputs import GLOBAL, LOCAL, PERSONAL
from equipoise.flower import codec, node
from equipoise.flower.codec import InvalidMessage, Metadata, NoReply, PreparationMissing
from equipoise.flower.request_journal import RequestJournal
from equipoise.flower.secagg import SecureAggregationRound, SecureCohortResults
from equipoise.records.rounds import LostRequest
from equipoise.records.scores import ClientFinalScores
from equipoise.simulation.executors import (
    CohortRequest,
    CohortResults,
    Executor,
    PendingScores,
    init_client_states,
)
from equipoise.tasks.remote_tables import RemoteTablesTask
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.pytree import Ints, digest, from_dict, stack, tree_bytes
from equipoise.wrappers.differential_privacy import is_noisy, strip_unprotected
from equipoise.wrappers.secure_aggregation import WORDS, SecureAggregation

LOG = logging.getLogger("equipoise")
MIN_ROWS_FOR_REMARK = 10  # test rows from which on a constant prediction is remarkable
HEADER_BYTES = 65536  # limit of the names and shapes in a reply


class Wire(Protocol):
    """How messages reach clients."""

    def present(self) -> dict[int, int]:
        """Return the connected clients with their number of training samples."""

    def exchange(self, messages: dict[int, bytes], limit: float) -> dict[int, bytes | str]:
        """Send messages and return the replies within ``limit`` seconds.

        Args:
            messages: Message for each client.
            limit: Seconds to wait.

        Returns:
            Reply by client; for a client that failed, the reason as text.
        """


class RemoteExecutor(Executor):
    """Run rounds on remote clients, which keep their state themselves.

    The server's state of a client is only the last round whose reply it accepted.
    """

    keeps_models = False

    def __init__(
        self,
        method: Method,
        task: Task,
        training: TrainingConfig,
        seed: int,
        rounds: int,
        *,
        wire: Wire,
        run: str,
        time_limit: float,
        min_replies: int,
        preparation: str = "",
        journal: RequestJournal | None = None,
        verdict: bool = False,
    ) -> None:
        """Set up the executor.

        Args:
            method: Method of the run.
            task: Task of the run.
            training: Local training.
            seed: Seed of the run.
            rounds: Number of rounds.
            wire: Connection to the clients.
            run: Id of the run, under which clients keep their state.
            time_limit: Seconds to wait for replies.
            min_replies: Replies below which a round changes nothing.
            preparation: Preprocessing of raw tables, for clients that do not have it yet.
            journal: Record of what is asked, by which a resumed run accounts for lost rounds.
            verdict: Whether clients train alone at the end, to compare with their own models.
        """
        super().__init__(method, task, training, seed, rounds)
        self.wire = wire
        self.run_id = run
        self.time_limit = time_limit
        self.min_replies = min_replies
        self._preparation = preparation
        self._journal = journal
        # A client that trained alone all the time has nothing to compare with.
        self._verdict = verdict and method.name != LOCAL
        # Seconds of the longest exchange, by which the time for training alone is bounded.
        self._longest = 0.0
        self._unprepared: set[int] = set()
        # Remark on the global model of the last round; may be empty.
        self.note = ""
        self._initial = task.init_params(seed)
        self._frozen = digest(task.frozen)
        # Expected reply, by the splits that are scored.
        self._expected: dict[tuple[str, ...], State] = {}
        # Samples of each client as it first reported them: no later claim changes its weight.
        self._reported_sizes: dict[int, int] = {}
        # Names and shapes of a client's input of a secure sum.
        self._words: State = {}

    def init_state(self, ids: Tensor, initial: Params, keeps_local: bool) -> ClientState:
        """Return the state of clients of which no reply was accepted yet."""
        return _accepted_in(torch.zeros(len(ids), dtype=torch.int64))

    def run_clients(self, request: CohortRequest) -> CohortResults:
        """Send a message to each client, and check and stack the replies."""
        round = request.round
        messages, absent = self._messages(request)
        clients = request.ids.tolist()
        unsent = frozenset(absent)
        began = time.monotonic()
        answers = self.wire.exchange(messages, self.time_limit) if messages else {}
        self._longest = max(self._longest, time.monotonic() - began)
        expected = self._expect(request)
        results: dict[int, ClientResult] = {}
        metadata: dict[int, Metadata] = {}
        for client in messages:
            try:
                results[client], metadata[client] = self._read(
                    answers.get(client), client, round, expected
                )
            except InvalidMessage as error:
                absent[client] = str(error)
        total: State | None = None
        if isinstance(self.method, SecureAggregation):
            secure = SecureAggregationRound(
                self.wire.exchange,
                self.run_id,
                round,
                self.time_limit,
                self.min_replies,
                self._journal,
            )
            total, summed = secure.run(metadata, self._words)
            results = {client: results[client] for client in summed}
            absent = absent | secure.absent
        for client, reason in absent.items():
            LOG.warning("round %d: nothing from client %d: %s", round, client, reason)
        rows = torch.tensor(
            [k for k, client in enumerate(clients) if client in results], dtype=torch.int64
        )
        stacked = stack([results[clients[k]] for k in rows.tolist()]) if results else None
        if total is not None:
            return SecureCohortResults(rows, stacked, absent, unsent, total=total)
        return CohortResults(rows, stacked, absent, unsent)

    def _messages(self, request: CohortRequest) -> tuple[dict[int, bytes], dict[int, str]]:
        """Encode a message for each connected client; return the others with the reason."""
        present = self.wire.present()
        if isinstance(self.task, RemoteTablesTask):
            self.task.set_reported_sizes(self._believed_sizes(present))
        clients: list[int] = request.ids.tolist()
        accepted_rounds = request.client_state.state["accepted_round"].tolist()
        absent = dict.fromkeys(sorted(set(clients) - present.keys()), "not connected")
        metadata = {
            "kind": "round",
            "run": self.run_id,
            "round": request.round,
            "splits": list(request.splits),
            "frozen": self._frozen,
        }
        messages = {
            client: node.encode_message(
                request.message.for_clients(k),
                self.task.info.blocks,
                {**metadata, **self._for_one(client, accepted_rounds[k])},
            )
            for k, client in enumerate(clients)
            if client in present
        }
        if self._journal is not None and messages:
            self._journal.record_request(request.round, sorted(messages))
        return messages, absent

    def _believed_sizes(self, present: dict[int, int]) -> dict[int, int]:
        """Return the numbers of samples by which clients count, and warn of those that exceed."""
        for client, samples in present.items():
            first = self._reported_sizes.setdefault(client, samples)
            if samples != first:
                LOG.warning(
                    "client %d now says that it has %d samples: it counts with the %d that it "
                    "reported first",
                    client,
                    samples,
                    first,
                )
        believed = believed_sizes(self._reported_sizes)
        for client, samples in present.items():
            if believed[client] < min(samples, self._reported_sizes[client]):
                LOG.warning(
                    "client %d says that it has %d samples: it counts as one with %d",
                    client,
                    samples,
                    believed[client],
                )
        return believed

    def lost_requests(self, rounds_done: int) -> list[LostRequest]:
        """Return the requests of later rounds whose replies were lost when the server stopped."""
        if self._journal is None:
            return []
        return [request for request in self._journal.read() if request.round > rounds_done]

    def evaluate_global(self, params: Params, splits: tuple[str, ...]) -> PendingScores:
        """Evaluate the global model on the server's sets, and note a constant prediction."""
        self.note = constant_prediction(self.task, params) if "test" in splits else ""
        return super().evaluate_global(params, splits)

    def final_scores(self, ids: Ints, params: Params, rounds: int) -> dict[int, ClientFinalScores]:
        """Ask clients for the scores of their own models, except under differential privacy.

        For a verdict each client also trains alone for as many rounds, and scores that model and
        the global one on the same rows.

        Args:
            ids: Client ids.
            params: The final global model; empty if there is none.
            rounds: Rounds of the run.

        Returns:
            Scores by client, of those that replied.
        """
        present = {} if is_noisy(self.method) else self.wire.present()
        like = self._expected_scores(params) if present else None
        sent = params if self._verdict else {}
        metadata = {"kind": "score", "run": self.run_id, "rounds": rounds, "alone": self._verdict}
        if self._preparation:
            metadata["preparation"] = self._preparation
        asked = {
            client: codec.encode({"global": sent}, {**metadata, "client": client})
            for client in ids.tolist()
            if client in present
        }
        limit = max(self.time_limit, rounds * self._longest) if self._verdict else self.time_limit
        answers = self.wire.exchange(asked, limit) if asked else {}
        scores = {}
        for client in asked:
            try:
                assert like is not None
                scores[client] = _scores(answers.get(client), client, like)
            except InvalidMessage as error:
                LOG.warning("the scores of client %d are not known: %s", client, error)
        return scores

    def _expected_scores(self, params: Params) -> ClientFinalScores:
        """Return scores with the names that clients must send."""
        like = own_scores(self.task, 0, self._initial, self.seed)
        if not self._verdict or not isinstance(self.task, ExamplesTask):
            return like
        kinds = [PERSONAL, LOCAL, *([GLOBAL] if params else [])]
        names = comparison_columns(self.task.info.metric, kinds)
        return replace(like, columns=dict.fromkeys([*like.columns, *names], math.nan))

    def _for_one(self, client: int, accepted_round: int) -> Metadata:
        """Return the metadata of one client's message."""
        metadata: Metadata = {"client": client, "accepted_round": accepted_round}
        if self._preparation and (not accepted_round or client in self._unprepared):
            metadata["preparation"] = self._preparation
            self._unprepared.discard(client)
        return metadata

    def _read(
        self, answer: bytes | str | None, client: int, round: int, expected: State
    ) -> tuple[ClientResult, Metadata]:
        """Decode and check a client's reply."""
        limit = tree_bytes(expected) + HEADER_BYTES
        try:
            out, metadata = codec.decode_reply(
                answer, limit, client=client, round=round, run=self.run_id
            )
            codec.check_like(out, expected)
            reply = from_dict(ClientResult, out)
            checked = ClientResult(reply.update, hparams=reply.hparams)
            codec.check_finite(checked.to_message(), "reply")
            hparams = reply.hparams
            if hparams is not None and (int(hparams.epochs) < 0 or float(hparams.lr) < 0):
                raise InvalidMessage("reply/train is negative")
        except NoReply:
            raise
        except InvalidMessage as error:
            if isinstance(error, PreparationMissing):
                self._unprepared.add(client)
            raise InvalidMessage(f"reply refused: {error}") from error
        if withheld := metadata.get("withheld"):
            LOG.warning(
                "round %d: the rules of client %d's owner keep %.200s", round, client, withheld
            )
        if metadata.get("lost"):
            LOG.warning("round %d: client %d has lost its state and started afresh", round, client)
        return replace(reply, client_state=_accepted_in(torch.tensor(round))), metadata

    def _expect(self, request: CohortRequest) -> State:
        """Return a reply with the expected names and shapes, from a trial round on the server."""
        splits = request.splits
        if splits not in self._expected or self.method.capabilities.uploads_vary:
            first = request.subset(slice(1))
            states = init_client_states(
                self.method, self.task, first.ids, self._initial, keeps_local=True
            )
            result = self.run_client(first._replace(client_state=states).subset(0))
            reply = strip_unprotected(self.method, result)
            if isinstance(self.method, SecureAggregation):  # it comes later, masked
                self._words = reply.update.extra[WORDS]
                reply = replace(reply, update=ClientUpdate({}))
            self._expected[splits] = reply.to_message()
        return self._expected[splits]


def constant_prediction(task: Task, params: Params) -> str:
    """Return a remark if a classifier predicts one class for all test rows of the server.

    Args:
        task: Task of the run.
        params: Global model.

    Returns:
        The remark, or an empty text.
    """
    if not isinstance(task, ExamplesTask) or task.info.target_kind != "classification":
        return ""
    x, _ = task.data.server("test")
    with torch.no_grad():
        classes = task.logits(params, x).argmax(-1).unique().tolist()
    if len(x) < MIN_ROWS_FOR_REMARK or len(classes) > 1:
        return ""
    name = task.info.class_names[classes[0]] if task.info.class_names else str(classes[0])
    return f"the global model predicts '{name}' for all {len(x)} test rows of the server"


def _scores(answer: bytes | str | None, client: int, like: ClientFinalScores) -> ClientFinalScores:
    """Decode a client's scores; a score that its rows do not define is ``None`` in the message."""
    _, metadata = codec.decode_reply(answer, HEADER_BYTES, client=client)
    return ClientFinalScores(
        codec.read_numbers(metadata, "scores", like.scores),
        codec.read_numbers(metadata, "baselines", like.columns),
    )


def _accepted_in(round: Tensor) -> ClientState:
    """Return the server's state of clients: the last round of each that was accepted."""
    return ClientState(state={"accepted_round": round})
