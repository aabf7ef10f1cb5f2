"""Base class of methods: what is decided at each step of a federated round.

One round is six decisions: who takes part (0), how a client trains (1), what it uploads (2), how
the server aggregates (3), what each client receives and how it merges that (4), and which model is
the personal one (5). A method overrides the hooks at which it decides. The defaults are FedAvg.

Client hooks are written for ONE client; executors map them over many with `torch.func.vmap`, so
they must not branch on the values of tensors. Server hooks see stacks `[K, ...]` of the K clients
whose replies were accepted. Hooks that may change state return it beside their result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise.config.schema import Options
from equipoise.core.client import Client
from equipoise.core.messages import (
    ClientUpdate,
    LocalHParams,
    ServerMessage,
    TrainingConfig,
    matching_blocks,
    require_blocks,
)
from equipoise.core.report_validation import ValueRange
from equipoise.core.server import Server
from equipoise.core.task import Task
from equipoise.utils import rng
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Params, State

MAX_INT64 = 2**63 - 1
HOOKS = (
    "select_clients",
    "distribute",
    "receive",
    "configure_training",
    "train",
    "upload",
    "aggregation_weights",
    "partial_sums",
    "apply_sums",
    "aggregate",
    "learn",
    "personal_model",
    "should_stop",
)
"""Hooks in the order of a round."""


@dataclass(frozen=True)
class Capabilities:
    """What a method needs from the runtime, and what the runtime may do with it.

    Attributes:
        aggregates_by_sum: `aggregation_weights` reads metrics only, and the new model follows from
            `partial_sums` alone. Uploads then stay where they were computed and are summed there.
        needs_previous_model: Clients read `client.local_params`, so their models are kept.
        needs_common_start: State is sound only if all clients start from the same whole model
            (control variates and the like).
        needs_same_round_replies: The server needs each reply in the round that asked for it
            (agents that are rewarded then).
        runs_trial_training: Clients also train on trial, beside what they decided, so that no
            deadline can be met by deciding less.
        bounds_influence: The method itself bounds what one client can change, or its uploads carry
            noise that must not be rescaled: the runtime does not shrink them.
        needs_server_data: The server evaluates models on rows of its own.
        learner_kind: `gradient` for any model under SGD, else the kind of agent a task must have.
        uploads_vary: Uploads have other names or shapes in other rounds.
        sends_every_block: In every round a client is sent every block that it uploads. Clipping
            and secure sums need the sent block as the reference of an update.
    """

    aggregates_by_sum: bool = False
    needs_previous_model: bool = False
    needs_common_start: bool = False
    needs_same_round_replies: bool = False
    runs_trial_training: bool = False
    bounds_influence: bool = False
    needs_server_data: bool = False
    learner_kind: str = "gradient"
    uploads_vary: bool = False
    sends_every_block: bool = True


@dataclass(frozen=True)
class Method(Options):
    """A federated method. Its dataclass fields are its options; the defaults are FedAvg."""

    name: ClassVar[str]
    family: ClassVar[str] = ""
    """Group in `equipoise list methods`: a key of `methods/families.py`."""
    capabilities: ClassVar[Capabilities] = Capabilities()
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone", "head")
    """Blocks that are sent and averaged, by role (see `models/blocks.py`) or by name."""
    report_ranges: ClassVar[Mapping[str, ValueRange]] = {}
    """Valid range of each value that clients upload beside their model, by its name in `metrics`
    or `extra`. Clients that report other values are left out of the round."""
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Options that tuning may change, with their ranges. Floats are searched on a log scale."""
    model: ClassVar[str] = ""
    """Model that is used by default, where the task offers it."""
    is_pass_through: ClassVar[bool] = True
    """True for base classes whose hooks only delegate; never set by a method."""
    _overridden_hooks: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **more: Any) -> None:
        """Find the hooks that a subclass overrides."""
        super().__init_subclass__(**more)
        deciding = [kind for kind in cls.__mro__ if not vars(kind).get("is_pass_through", False)]
        cls._overridden_hooks = frozenset(
            hook for hook in HOOKS if any(hook in vars(kind) for kind in deciding)
        )

    @property
    def overridden_hooks(self) -> frozenset[str]:
        """Return the hooks at which this method decides itself, unlike FedAvg."""
        return self._overridden_hooks

    @property
    def supports_stale_updates(self) -> bool:
        """Return whether a reply may be used in a later round than the one that asked for it."""
        return not (
            self.capabilities.needs_common_start
            or self.capabilities.needs_same_round_replies
            or "distribute" in self.overridden_hooks
        )

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Check that the method can work on a task, before any work starts.

        Args:
            task: The task of the run.
            training: Options of local training.

        Raises:
            UsageError: If the combination is unsound; the message says why.
        """
        require_blocks(task.info.blocks, self.default_shared_blocks, self.name)
        if len(self.shared_blocks(task)) not in (0, len(task.info.blocks)):
            self.require_two_blocks(task)

    def require_two_blocks(self, task: Task) -> None:
        """Raise a UsageError if the task's model has no backbone or no head.

        Args:
            task: The task of the run.

        Raises:
            UsageError: If the model has no backbone or no head.
        """
        if not (task.info.param_names("backbone") and task.info.param_names("head")):
            raise UsageError(
                f"{self.name} treats backbone and head differently, but the model of task "
                f"'{task.info.name}' is one layer: choose a deeper one (--model mlp)"
            )

    def warnings(self, task: Task, num_rounds: int) -> tuple[str, ...]:
        """Return sentences about surprising but valid options, shown before the run starts."""
        return ()

    def num_rounds(self, requested: int, task: Options) -> int:
        """Return the number of rounds of a run.

        Args:
            requested: The rounds that the user asked for.
            task: Options of the task.
        """
        return requested

    # ------------------------------------------------------------------ client: ONE client

    def init_client(self, task: Task, params: Params) -> State:
        """Return the state of a client before its first round.

        Args:
            task: The task of the run.
            params: The initial model.
        """
        return {}

    def receive(self, client: Client) -> tuple[Params, State]:
        """Merge the received blocks into the local model (decision 4, at the client).

        Returns:
            The model to train from, and the client's state.
        """
        return merge_sent_blocks(client), client.state

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        """Choose epochs and learning rate (decision 1).

        Returns:
            What the server proposed, else what is configured; and the client's state.
        """
        return client.hparams, client.state

    def allowed_hparams(
        self, task: Task, proposed: LocalHParams, round: int, num_rounds: int, server_chose: bool
    ) -> tuple[LocalHParams, LocalHParams]:
        """Return the range of what `configure_training` may choose.

        A client that reports other epochs or another rate is left out of the round. A method that
        overrides `configure_training` should override this, too: else anything is allowed.

        Args:
            task: The task of the run.
            proposed: Epochs and rate that the server proposed or configured, `[K]`.
            round: The round that asked, from 1.
            num_rounds: Rounds of the run.
            server_chose: Whether the server proposed them in this round.

        Returns:
            The least and the largest epochs and rates, `[K]` each.
        """
        if "configure_training" not in self.overridden_hooks:
            return proposed, proposed
        most_epochs = torch.full_like(proposed.epochs, MAX_INT64)
        lowest = LocalHParams(torch.zeros_like(proposed.epochs), torch.zeros_like(proposed.lr))
        return lowest, LocalHParams(most_epochs, torch.full_like(proposed.lr, torch.inf))

    def train(self, client: Client) -> tuple[Params, State]:
        """Train locally with the chosen epochs and learning rate.

        Returns:
            The trained model, and the client's state.
        """
        return client.fit(client.start), client.state

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Build the upload (decision 2).

        Returns:
            The shared parameters of the trained model, and the client's state.
        """
        names = self.shared_param_names(client.task)
        return ClientUpdate({name: client.trained[name] for name in names}), client.state

    def personal_model(self, client: Client) -> Params:
        """Return the model that the client would use (decision 5)."""
        return client.trained

    # ------------------------------------------------------------------ server: stacks [K, ...]

    def init_server(self, task: Task, params: Params) -> State:
        """Return the server's state before the first round.

        Args:
            task: The task of the run.
            params: The initial model.
        """
        return {}

    def select_clients(self, server: Server) -> tuple[Tensor, State]:
        """Choose the clients of this round (decision 0).

        Returns:
            Client numbers in ascending order, drawn uniformly by the seed; and the server's state.
        """
        ids = rng.sample_cohort(
            server.seed, server.round, server.task.info.num_clients, server.participation
        )
        return torch.from_numpy(ids), server.state

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Build what each client is sent (decision 4, at the server).

        Args:
            server: The server at the start of the round.
            ids: The clients of this round `[K]`.

        Returns:
            The message to all of them, and the server's state.
        """
        shared = self.shared_blocks(server.task)
        sent_blocks = {block: block in shared for block in server.task.info.blocks}
        return ServerMessage(server.params, sent_blocks), server.state

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        """Weigh the clients (decision 3).

        Args:
            server: The server, with the global model that was sent.
            ids: Clients whose replies were accepted `[K]`.
            updates: Their uploads; only metrics if the method aggregates by sum.

        Returns:
            Weights `[K]`, or per parameter name `[K, ...]`, that sum to one over K; and the
            server's state.
        """
        return weights_by_num_examples(server.task, ids), server.state

    def check_updates(
        self, message: ServerMessage, ids: Tensor, updates: ClientUpdate, memory: dict[str, Any]
    ) -> Mapping[int, str]:
        """Find updates that no honest client can send, beyond `report_ranges`.

        Args:
            message: What the server sent to all.
            ids: The clients `[K]`.
            updates: Their uploads.
            memory: What earlier checks left, and later ones may compare with. It is lost when a run
                is resumed, and each process has its own.

        Returns:
            Row of each such client in the stack, with the reason.
        """
        return {}

    def memory_limits(self, server: Server, ids: Tensor, moves: Tensor) -> tuple[Tensor, State]:
        """Bound how far clients move what the server remembers and sends to all.

        It is called before `aggregate` if clients upload changes of an entry of `broadcast` under
        the same name in `extra`.

        Args:
            server: The server, with the global model that was sent.
            ids: Clients whose replies were accepted `[K]`.
            moves: How far each would move the memory along its own direction `[K]`; negative
                against it.

        Returns:
            Factors `[K]` in [0, 1] by which their updates are shrunk, and the server's state.
        """
        return torch.ones_like(moves), server.state

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        """Compute the next global model (decision 3). Always called.

        The default sums over clients and applies the sums. `server.sum_updates` adds chunk by
        chunk in a fixed order, so that the bits do not depend on the number of processes.

        Args:
            server: The server, with the global model that was sent.
            ids: Clients whose replies were accepted `[K]`.
            updates: Their uploads; only metrics if the method aggregates by sum.
            weights: The result of `aggregation_weights`.

        Returns:
            The next global model, and the server's state.
        """
        if server.sum_updates is not None:
            return self.apply_sums(server, server.sum_updates(weights))
        return self.apply_sums(server, self.partial_sums(server.params, updates, weights))

    def partial_sums(
        self, global_params: Params, updates: ClientUpdate, weights: Tensor | Params
    ) -> State:
        """Sum over some clients. Sums of parts of a cohort add up to those of the whole.

        Args:
            global_params: The global model that was sent.
            updates: Uploads of these clients.
            weights: Their weights.

        Returns:
            Named sums; by default `mean`, the weighted sum of their parameters.
        """
        return {"mean": weighted_mean(updates.params, weights)}

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """Compute the next global model from the sums over all accepted clients.

        Returns:
            The next global model, and the server's state.
        """
        return {**server.params, **sums["mean"]}, server.state

    def learn(self, server: Server, ids: Tensor, updates: ClientUpdate) -> State:
        """Train what decides at the server, such as agents, after the round's aggregation.

        It is called once per round, after `aggregate`. What this round's weights depend on cannot
        be learned here.

        Args:
            server: The server, with the new global model and the state that `aggregate` returned.
            ids: The clients whose replies were aggregated `[K]`.
            updates: Their uploads `[K, ...]`. Where `aggregates_by_sum`, only their metrics.

        Returns:
            The server's state for the next round.
        """
        return server.state

    def ends_after(self, server: Server) -> bool:
        """Return whether the run ends after this round, which is then scored."""
        return False

    def should_stop(self, server: Server) -> str | None:
        """Return the reason to end the run after this round, or None (decision 0)."""
        return None

    # ------------------------------------------------------------------ shared parameters

    def shared_blocks(self, task: Task) -> tuple[str, ...]:
        """Return the blocks of the task's model that are sent and averaged."""
        return matching_blocks(task.info.blocks, self.default_shared_blocks)

    def shared_param_names(self, task: Task) -> tuple[str, ...]:
        """Return the names of the parameters in the shared blocks."""
        return tuple(name for block in self.shared_blocks(task) for name in task.info.blocks[block])

    def has_global(self, task: Task) -> bool:
        """Return whether the server's model is complete: all blocks with parameters are shared."""
        shared = self.shared_blocks(task)
        return all(block in shared for block, names in task.info.blocks.items() if names)


def merge_sent_blocks(client: Client) -> Params:
    """Overwrite the blocks that were sent; the others stay as the client has them.

    Args:
        client: The client, before training.

    Returns:
        A whole model.
    """
    merged: Params = {}
    for block, names in client.task.info.blocks.items():
        sent = client.message.sent_blocks[block]
        for name in names:
            if not isinstance(sent, bool):
                merged[name] = torch.where(
                    sent, client.message.params[name], client.local_params[name]
                )
            elif sent:
                merged[name] = client.message.params[name]
            else:
                merged[name] = client.local_params[name]
    return merged


def hparams_like(proposed: LocalHParams, epochs: int, lr: float) -> LocalHParams:
    """Return the same epochs and rate for all clients, in the shape `[K]` of `proposed`.

    Args:
        proposed: Epochs and rates of K clients.
        epochs: The epochs of every client.
        lr: The learning rate of every client.
    """
    return LocalHParams(
        torch.full_like(proposed.epochs, epochs),
        torch.full_like(proposed.lr, lr, dtype=torch.float64),
    )


def equal_weights(ids: Tensor) -> Tensor:
    """Return 1 / K for each of K clients."""
    return torch.full((len(ids),), 1.0 / len(ids), dtype=torch.float64)


def weights_by_num_examples(task: Task, ids: Tensor) -> Tensor:
    """Return weights `[K]` proportional to the clients' numbers of training examples."""
    num_examples = task.num_examples(ids).double()
    return num_examples / num_examples.sum()


def weighted_mean(stack: Params, weights: Tensor | Params) -> Params:
    """Return the sum over K of weights times models.

    Args:
        stack: Parameters of K models, each `[K, ...]`.
        weights: Weights `[K]`; or by parameter name, `[K]` or with the parameter's own shape
            behind.

    Returns:
        The parameters of one model.
    """
    mean: Params = {}
    for name, value in stack.items():
        weight = weights[name] if isinstance(weights, dict) else weights
        if weight.dim() == 1:
            mean[name] = torch.tensordot(weight.to(value.dtype), value, 1)
        else:
            mean[name] = (weight * value).sum(0)
    return mean
