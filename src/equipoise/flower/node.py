"""The client's side of a round: answer a message, and keep all state on the client's own disk."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import msgspec
import torch
from torch import Tensor

from equipoise import __version__
from equipoise.core import (
    Blocks,
    ClientResult,
    ClientState,
    ClientUpdate,
    ExperimentTask,
    Params,
    ServerMessage,
    State,
)
from equipoise.data.tabular.preprocessing import Preprocessor
from equipoise.experiment.build import build_task
from equipoise.experiment.evaluation import LocalBaselineConfig, own_scores, train_alone
from equipoise.experiment.model_card import Card
from equipoise.experiment.row_outputs import GLOBAL, LOCAL, PERSONAL
from equipoise.experiment.site_folder import rival_files
from equipoise.flower import codec, secagg
from equipoise.flower.client_state import ClientStateStore, RevealedUpdates
from equipoise.flower.codec import InvalidMessage, Metadata, PreparationMissing
from equipoise.flower.config import NodeConfig
from equipoise.flower.egress import EgressCounter
from equipoise.flower.secagg import SecureSumMember
from equipoise.flower.table_agreement import (
    PreprocessingAgreement,
    client_statistics,
    raw_table_config,
)
from equipoise.privacy.budget import OverBudget, PrivacyBudget
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.executors import CohortRequest, Loop, init_client_states
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils import io
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import digest, from_dict, index, to_dict
from equipoise.wrappers.differential_privacy import (
    NormalSampler,
    secret_normal,
    strip_unprotected,
    with_differential_privacy,
)
from equipoise.wrappers.secure_aggregation import SecureAggregation, with_secure_aggregation

LOG = logging.getLogger("equipoise")


class Node:
    """One client of a deployment."""

    def __init__(
        self,
        given: Mapping[str, object],
        config: NodeConfig,
        task: ExperimentTask | None = None,
        draw: NormalSampler = secret_normal,
    ) -> None:
        """Set up the client.

        Args:
            given: Options of the run; the node's own ``data`` folder replaces theirs.
            config: Configuration of the node.
            task: The task, if it is built already.
            draw: Source of the noise of differential privacy.

        Raises:
            UsageError: If the task has no such client.
        """
        if config.data and "data" in ExperimentConfig.from_options(given).to_dict:
            given = {**given, "data": config.data}
        self.settings = ExperimentConfig.from_options(given)
        self.config = config
        self.raw = raw_table_config(self.settings)
        if task is not None:
            self.task = task
        clients = self.raw.clients if self.raw else self.task.info.num_clients
        if config.client >= clients:
            raise UsageError(
                f"client-id is {config.client}, but the task has clients 0 to {clients - 1}"
            )
        self.settings = self.settings.with_chosen_noise(clients, is_simulation=False)
        self.id = torch.tensor(config.client)
        self.method = with_secure_aggregation(
            with_differential_privacy(self.settings.method, self.settings.privacy, draw),
            self.settings.run.secure,
            keeps_update=True,
        )
        self.budget = PrivacyBudget(
            config.state_dir / "privacy.json",
            self.settings.privacy,
            config.max_epsilon,
            config.max_delta,
        )

    @cached_property
    def task(self) -> ExperimentTask:
        """The task; with raw tables, it can be built once their preprocessing is known."""
        return build_task(self.settings)

    @cached_property
    def _frozen(self) -> str:
        """Digest of the parameters that are never trained."""
        return digest(self.task.frozen)

    def answer(self, data: bytes) -> bytes:
        """Answer a message; an error is sent as one sentence."""
        try:
            tree, metadata = codec.decode(data)
            kind = metadata.get("kind")
            if kind == "hello":
                return codec.encode({}, self._introduction())
            io.make_folder(self.config.state_dir, private=True)
            # Messages that come at once could each spend what is left of a budget.
            with io.exclusive(self.config.state_dir):
                return self._answer_alone(kind, tree, metadata)
        except Exception as error:
            LOG.exception("client %d cannot answer", self.config.client)
            return encode_error(error)

    def _answer_alone(self, kind: object, tree: State, metadata: Metadata) -> bytes:
        """Answer a message while no other one is answered."""
        if kind == "statistics":
            self.budget.check()
            self.config.rules.check_statistics(self.raw.num_train_rows if self.raw else 0)
            return codec.encode(
                {}, client_statistics(self.settings, self.config.client, self.config.name)
            )
        if metadata.get("client") != self.config.client:
            raise InvalidMessage(
                f"the message is for client {metadata.get('client')}, this is client "
                f"{self.config.client}"
            )
        if kind == "score":
            return codec.encode({}, self._score(tree, metadata))
        answer = self._sum if kind in secagg.PHASES else self._round
        return codec.encode(*answer(tree, metadata))

    def _introduction(self) -> Metadata:
        """Introduce this client; with noise, a budget or a rule, its samples are hidden."""
        config = self.config
        is_hidden = config.max_epsilon is not None or not config.rules.samples
        if self.settings.privacy.has_noise or is_hidden:
            samples = 1
        elif self.raw:
            samples = self.raw.num_train_rows
        else:
            samples = int(self.task.num_examples(self.id.reshape(1))[0])
        return {
            "client": self.config.client,
            "name": self.config.name,
            "samples": samples,
            "version": __version__,
        }

    def _num_rows(self, split: str) -> int:
        """Return the number of this client's rows in a split."""
        return int(self.task.num_rows(self.id.reshape(1), split)[0])

    def _prepare(self, metadata: Metadata, disk: ClientStateStore) -> None:
        """Apply the preprocessing that the server sent with this message or an earlier one."""
        if isinstance(text := metadata.get("preparation"), str):
            disk.save_preparation(
                Preprocessor.from_json(text, "the server's preparation").to_json()
            )
        if not disk.preparation.exists():
            raise PreparationMissing(
                "it does not know how raw tables are prepared: it is told with the next round"
            )
        self.settings = PreprocessingAgreement(
            Preprocessor.from_json(disk.preparation.read_text(), f"'{disk.preparation}'"), 0
        ).settings(self.settings)

    def _score(self, tree: State, metadata: Metadata) -> Metadata:
        """Return the scores of this client's own model at the end of the run.

        If the server asks for it, this client also trains alone for as many rounds, and scores that
        model and the global one on the same rows.
        """
        if self.settings.privacy.has_noise:
            raise InvalidMessage("under dp_noise this client tells no scores")
        self.budget.check()
        disk = ClientStateStore(self.config.state_dir, str(metadata.get("run")), self.config.client)
        if self.raw:
            self._prepare(metadata, disk)
        model = disk.load_model()
        rivals = self._rivals(tree, metadata)
        own = own_scores(self.task, self.config.client, model, self.settings.run.seed, rivals)
        if rivals and isinstance(self.task, ExamplesTask):
            files = rival_files(
                disk.folder,
                self.task,
                self.config.client,
                self._owner,
                self.settings.run.method,
                {PERSONAL: model, **rivals},
            )
            disk.folder.write(files)
        num_rows = self._num_rows("test")
        rules = self.config.rules
        may_leave = {name: rules.may_leave(name, num_rows) for name in own.scores}
        baselines = _without_nan(own.columns)
        if not rules.may_leave(self.task.info.metric, num_rows):
            baselines = dict.fromkeys(baselines)
        if not rules.samples and "test_rows" in baselines:
            baselines["test_rows"] = None
        return {
            "client": self.config.client,
            "scores": {
                name: value if may_leave[name] else None
                for name, value in _without_nan(own.scores).items()
            },
            "baselines": baselines,
        }

    def _rivals(self, tree: State, metadata: Metadata) -> dict[str, Params]:
        """Return the model of this client's rows alone, and the global one if the server sent it.

        Args:
            tree: Tensors of the server's message.
            metadata: Metadata of the server's message.

        Raises:
            InvalidMessage: If the global model does not fit.
        """
        if metadata.get("alone") is not True:
            return {}
        run = self.settings.run
        rounds = min(codec.read_int(metadata, "rounds", 1), run.rounds)
        config = LocalBaselineConfig(run.seed, rounds, run.rounds)
        rivals = {LOCAL: train_alone(self.task, self.config.client, self.settings.training, config)}
        if global_ := tree.get("global"):
            codec.check_like(global_, self.task.init_params(run.seed), "global")
            rivals[GLOBAL] = global_
        return rivals

    def _round(self, tree: State, metadata: Metadata) -> tuple[State, Metadata]:
        """Train one round."""
        round = codec.read_int(metadata, "round", 1)
        accepted_round = codec.read_int(metadata, "accepted_round", 0)
        run = str(metadata.get("run"))
        disk = ClientStateStore(self.config.state_dir, run, self.config.client)
        member = self._secure_sum_member(run, disk)
        if isinstance(self.method, SecureAggregation):
            member.check_round(round)
        else:
            self.budget.check()
        if self.raw:
            self._prepare(metadata, disk)
        if metadata.get("frozen", "") != self._frozen:
            raise InvalidMessage(
                "its frozen parameters are not the server's: give both the same file "
                "(--init-weights) or folder (--pretrained)"
            )
        EgressCounter(self.config.state_dir / "egress.json", self.config.rules).count_round(run)
        reply, is_lost = self._train(tree, metadata, disk, round, accepted_round)
        num_rows = {split: self._num_rows(split) for split in reply.scores}
        scores, withheld = self.config.rules.withhold_scores(reply.scores, num_rows)
        reply = replace(reply, scores=scores)
        metadata = {**self._introduction(), "run": run, "round": round, "lost": is_lost}
        if withheld:
            LOG.info("round %d: withheld by this node's rules: %s", round, ", ".join(withheld))
            metadata["withheld"] = withheld
        if isinstance(self.method, SecureAggregation):
            # The upload stays here until its masks are agreed on.
            keys = member.start_round(self.method, round, reply.update)
            return replace(reply, update=ClientUpdate({})).to_message(), {**metadata, **keys}
        self.budget.spend()
        return reply.to_message(), metadata

    def _train(
        self,
        tree: State,
        metadata: Metadata,
        disk: ClientStateStore,
        round: int,
        accepted_round: int,
    ) -> tuple[ClientResult, bool]:
        """Run this client's round and save its new state and model.

        Args:
            tree: Tensors of the server's message.
            metadata: Metadata of the server's message.
            disk: The client's own disk.
            round: Number of the round.
            accepted_round: Round of this client that the server accepted last; 0 for none.

        Returns:
            The result, and whether the state after that round was lost.

        Raises:
            InvalidMessage: If the message does not fit, or training diverged without noise.
        """
        settings = self.settings
        initial = self.task.init_params(settings.run.seed)
        before = self._load_state(disk, accepted_round)
        is_lost = bool(accepted_round) and before is None
        executor = Loop(
            self.method, self.task, settings.training, settings.run.seed, settings.run.rounds
        )
        with torch.no_grad():
            if before is None:
                states = init_client_states(
                    self.method, self.task, self.id.reshape(1), initial, keeps_local=True
                )
                before = index(states, 0)
            known = before.local_params if accepted_round and not is_lost else None
            message = decode_message(tree, metadata, initial, self.task.info.blocks, known)
            splits = () if settings.privacy.has_noise else _splits(metadata)
            result = executor.run_client(CohortRequest(round, self.id, message, before, splits))
        result = strip_unprotected(self.method, result)
        self.config.rules.check_decisions(result)
        after = result.client_state
        try:
            codec.check_finite(to_dict(after), "after training, client")
        except InvalidMessage:
            if not settings.privacy.has_noise:
                raise
            # The upload is a noised change of zero, so that the server learns nothing of this.
            LOG.warning("round %d: training diverged; this client keeps its state", round)
            after = before
        disk.save(round, to_dict(replace(after, personal=None)), accepted_round)
        self._save_model(disk, after.local_params if after.personal is None else after.personal)
        return replace(result, client_state=after), is_lost

    def _save_model(self, disk: ClientStateStore, model: Params) -> None:
        """Save the model that this client would use now, for ``predict`` and ``export``."""
        card = Card.of(self.task, self.settings.run)
        text = ""
        if card is not None:
            text = msgspec.structs.replace(card, owner=self._owner).write()
        disk.save_model(model, self.task.frozen, text, self.settings.to_dict)

    @property
    def _owner(self) -> str:
        """Name of this client, for the folder of its models."""
        return self.config.name or f"client {self.config.client}"

    def _load_state(self, disk: ClientStateStore, accepted_round: int) -> ClientState | None:
        """Return the state after the last accepted round; None without one, or if it is lost."""
        if not accepted_round:
            return None
        saved = disk.load(accepted_round)
        if saved is not None:
            return from_dict(ClientState, saved)
        LOG.warning(
            "client %d has lost its state of round %d and starts afresh",
            self.config.client,
            accepted_round,
        )
        return None

    def _sum(self, tree: State, metadata: Metadata) -> tuple[State, Metadata]:
        """Answer a phase of secure aggregation."""
        run = str(metadata.get("run"))
        round = codec.read_int(metadata, "round", 1)
        disk = ClientStateStore(self.config.state_dir, run, self.config.client)
        tree, more = self._secure_sum_member(run, disk).answer(round, metadata)
        return tree, {"client": self.config.client, "run": run, "round": round, **more}

    def _secure_sum_member(self, run: str, disk: ClientStateStore) -> SecureSumMember:
        """Return this client's part in the secure sums of a run."""
        config = self.config
        revealed = RevealedUpdates(config.state_dir / "secure-sums.json")
        return SecureSumMember(config.client, run, disk, self.budget, revealed, config.max_clients)


def _without_nan(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Replace NaN by ``None``, as JSON needs it."""
    return {name: value if math.isfinite(value) else None for name, value in scores.items()}


def encode_error(error: Exception) -> bytes:
    """Encode an error for the server.

    An error may quote a client's rows, so only texts of our own error types leave the client.
    """
    text = f"{type(error).__name__}: the reason is in this client's own log"
    if isinstance(error, InvalidMessage | OverBudget):
        text = str(error)[:500]
    return codec.encode({}, {"error": text, "unprepared": isinstance(error, PreparationMissing)})


def encode_message(message: ServerMessage, blocks: Blocks, metadata: Metadata) -> bytes:
    """Encode one client's message, with only the blocks and rows that are sent to this client.

    Args:
        message: The message to one client.
        blocks: Blocks of the model.
        metadata: Entries that are sent beside the tensors.

    Returns:
        The bytes to send.
    """
    sent = {block: bool(value) for block, value in message.sent_blocks.items()}
    params = {
        name: message.params[name]
        for block, names in blocks.items()
        if sent[block]
        for name in names
    }
    for name, rows in message.sent_rows.items():
        if name in params:
            params[name] = params[name][int(rows[0]) : int(rows[1])]
    return codec.encode(
        to_dict(replace(message, params=params, sent_blocks={})), {**metadata, "sent": sent}
    )


def _with_known_rows(
    name: str, sent: Tensor, rows: Tensor, initial: Tensor, local_params: Params | None
) -> Tensor:
    """Return a whole parameter of which some rows were sent.

    Args:
        name: Name of the parameter.
        sent: The rows that were sent.
        rows: First and last (excluded) of them `[2]`.
        initial: The parameter at the start of the run.
        local_params: The client's model of its last accepted round; None if it has none.
    """
    codec.check_like(rows, torch.zeros(2, dtype=torch.int64), "message/sent_rows")
    first, last = rows.tolist()
    if not 0 <= first <= last <= len(initial):
        raise InvalidMessage(f"the message sends rows {first} to {last} of '{name}'")
    codec.check_like(sent, initial[first:last], f"message/{name}")
    if not first:
        return torch.cat([sent, initial[last:]])
    if local_params is None:
        raise InvalidMessage(f"this client lost the first rows of '{name}': all must be sent")
    return torch.cat([local_params[name][:first], sent, initial[last:]])


def _splits(metadata: Metadata) -> tuple[str, ...]:
    """Read the splits on which the server asks for scores."""
    splits = metadata.get("splits")
    if not isinstance(splits, list) or not set(map(str, splits)) <= {"test", "val"}:
        raise InvalidMessage("the message does not say on which rows to score models")
    return tuple(splits)


def decode_message(
    tree: State,
    metadata: Metadata,
    model: Params,
    blocks: Blocks,
    local_params: Params | None = None,
) -> ServerMessage:
    """Decode one client's message.

    Blocks that were not sent are NaN, so that no method can use them unnoticed.

    Args:
        tree: Tensors of the message.
        metadata: Metadata of the message.
        model: The model at the start of the run.
        blocks: Blocks of the model.
        local_params: The client's model of its last accepted round; None if it has none.

    Returns:
        The message, with whole parameters.

    Raises:
        InvalidMessage: If the message does not fit the model, or needs a model that was lost.
    """
    try:
        down = from_dict(ServerMessage, tree)
    except ValueError as error:
        raise InvalidMessage(f"the message cannot be read: {error}") from error
    unknown = sorted(down.params.keys() - model.keys())
    if unknown:
        raise InvalidMessage(f"the message has an unknown parameter '{unknown[0]}'")
    for name in down.params.keys() & down.sent_rows.keys():
        down.params[name] = _with_known_rows(
            name, down.params[name], down.sent_rows[name], model[name], local_params
        )
    codec.check_like(down.params, {name: model[name] for name in down.params}, "message")
    nothing = {
        name: torch.full_like(value, torch.nan)
        for name, value in model.items()
        if value.is_floating_point()
    }
    sent = metadata.get("sent")
    if (
        not isinstance(sent, dict)
        or sent.keys() != blocks.keys()
        or not all(type(one) is bool for one in sent.values())
    ):
        raise InvalidMessage("the message does not say which blocks it sends")
    return replace(down, params={**nothing, **down.params}, sent_blocks=sent)
