"""A method: a policy at the decisions of a round, both halves together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise.config.schema import Options
from equipoise.core.blocks import matching_blocks, require_blocks
from equipoise.core.client import Client
from equipoise.core.messages import ClientUpdate, LocalHParams, ServerMessage, TrainingConfig
from equipoise.core.report_validation import ValueRange
from equipoise.core.server import Server
from equipoise.core.task import Task
from equipoise.utils import rng
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Params, State

HOOKS = (
    *("select_clients", "distribute", "receive", "configure_training", "train", "upload"),
    *(
        "aggregation_weights",
        "partial_sums",
        "apply_sums",
        "aggregate",
        "learn",
        "personal_model",
        "should_stop",
    ),
)
"""Where a method may decide: 0 select and stop, 1 decide and update, 2 upload, 3 weigh, then sums and step, or
aggregate, 4 give and install, 5 personal."""


@dataclass(frozen=True)
class Method(Options):
    """A policy at the decisions of a round; its fields are its options. The defaults are FedAvg.

    Hooks that may change state return it beside their result, so that it cannot be forgotten.
    """

    name: ClassVar[str]
    family: ClassVar[str] = ""
    """The kind of answer that it gives to clients that differ, for lists: a key of ``methods/families.py``."""
    default_shared_blocks: ClassVar[tuple[str, ...]] = ("backbone", "head")
    """The blocks that travel, by role (see :mod:`equipoise.core.blocks`) or by name."""
    needs_previous_model: ClassVar[bool] = False
    """Whether a client needs the model it held before (any method whose install reads ``c.local``)."""
    search_space: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Options that tuning may change, with their ranges: whole numbers, or numbers on a logarithmic scale."""
    model: ClassVar[str] = ""
    """The model that it is made for, where the task offers it and the user asks for no other."""
    needs_common_start: ClassVar[bool] = False
    """Whether its memory is sound only if all clients start from one whole model (control variates and their like)."""
    runs_trial_training: ClassVar[bool] = False
    """Whether its clients also train on trial, beside what they decided: no deadline can be met by deciding less."""
    needs_same_round_replies: ClassVar[bool] = False
    """Whether its server counts on each reply in the very round that asked for it (agents that are rewarded then)."""
    learner_kind: ClassVar[str] = "gradient"
    """What it trains: ``gradient`` for any model under SGD, else the kind of agent that a task must have."""
    report_ranges: ClassVar[Mapping[str, ValueRange]] = {}
    """What clients upload beside their models, by the name in ``metrics`` or ``extra``, and which numbers are sound."""
    aggregates_by_sum: ClassVar[bool] = True
    """Whether ``weigh`` reads no more of uploads than their metrics, and the new model follows from ``sums`` alone, so
    that uploads need not be brought together. A class that defines ``weigh`` or ``aggregate`` and does not say so is
    taken for one that must see every upload."""
    is_pass_through: ClassVar[bool] = True
    """Whether the hooks that this very class defines only stand in for decisions; never set by a method."""
    _overridden_hooks: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        deciding = [kind for kind in cls.__mro__ if not vars(kind).get("is_pass_through", False)]
        if (
            "aggregates_by_sum" not in vars(cls)
            and {"aggregation_weights", "aggregate"} & vars(cls).keys()
        ):
            cls.aggregates_by_sum = False
        cls._overridden_hooks = frozenset(
            hook for hook in HOOKS if any(hook in vars(kind) for kind in deciding)
        )

    @property
    def overridden_hooks(self) -> frozenset[str]:
        """The hooks at which this method decides itself, where the defaults would do as FedAvg does."""
        return self._overridden_hooks

    @property
    def supports_stale_updates(self) -> bool:
        """Whether a reply may count in a later round than the one that asked for it."""
        return not (
            self.needs_common_start
            or self.needs_same_round_replies
            or "distribute" in self.overridden_hooks
        )

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse an unsound combination, with a sentence that says why."""
        require_blocks(task.blocks, self.default_shared_blocks, self.name)
        if len(self.shared_blocks(task)) not in (0, len(task.blocks)):
            self.require_two_blocks(task)

    def require_two_blocks(self, task: Task) -> None:
        if not (task.param_names("backbone") and task.param_names("head")):
            raise UsageError(
                f"{self.name} treats backbone and head differently, but the model of task '{task.name}' is one layer: "
                "choose a deeper one (--model mlp)"
            )

    # --- client half: ONE client ------------------------------------------------------------------------------------

    def init_client(self, task: Task, params: Params) -> State:
        """State of a client that takes part for the first time."""
        return {}

    def receive(self, client: Client) -> tuple[Params, State]:
        """Decision 4b: merge what came down into what is held."""
        return merge_sent_blocks(client), client.state

    def configure_training(self, client: Client) -> tuple[LocalHParams, State]:
        """Decision 1: the server's proposal, else as configured."""
        return client.hparams, client.state

    def train(self, client: Client) -> tuple[Params, State]:
        """Local training under decision 1."""
        return client.fit(client.start), client.state

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Decision 2."""
        return ClientUpdate(
            {name: client.trained[name] for name in self.shared_param_names(client.task)}
        ), client.state

    def personal_model(self, client: Client) -> Params:
        """Decision 5: the model that the client would use."""
        return client.trained

    # --- server half: stacks [K, ...] of the clients that replied ---------------------------------------------------

    def init_server(self, task: Task, params: Params) -> State:
        return {}

    def select_clients(self, server: Server) -> tuple[Tensor, State]:
        """Decision 0: the clients of this round, ascending; by default a cohort drawn by the seed alone."""
        return torch.from_numpy(
            rng.cohort(server.seed, server.round, server.task.num_clients, server.participation)
        ), server.state

    def distribute(self, server: Server, ids: Tensor) -> tuple[ServerMessage, State]:
        """Decision 4: what each of these clients is sent."""
        travels = self.shared_blocks(server.task)
        return ServerMessage(
            server.params, {block: block in travels for block in server.task.blocks}
        ), server.state

    def aggregation_weights(
        self, server: Server, ids: Tensor, updates: ClientUpdate
    ) -> tuple[Tensor | Params, State]:
        """Decision 3: weights ``[K]``, or per name with the parameter's own shape behind; summing to one over K."""
        return weights_by_num_examples(server.task, ids), server.state

    def aggregate(
        self, server: Server, ids: Tensor, updates: ClientUpdate, weights: Tensor | Params
    ) -> tuple[Params, State]:
        """Compute the next global model (decision 3). Always called.

        The default sums over clients and applies the sums. `server.sum_updates` adds chunk by
        chunk in a fixed order, so that the bits do not depend on the number of processes.
        """
        if server.sum_updates is not None:
            return self.apply_sums(server, server.sum_updates(weights))
        return self.apply_sums(server, self.partial_sums(server.params, updates, weights))

    def partial_sums(
        self, global_params: Params, updates: ClientUpdate, weights: Tensor | Params
    ) -> State:
        """Sums over these clients, who were ``sent`` this model: those of parts of a cohort add up to those of all."""
        return {"mean": weighted_mean(updates.params, weights)}

    def apply_sums(self, server: Server, sums: State) -> tuple[Params, State]:
        """The next global model from the sums over all clients that replied."""
        return {**server.params, **sums["mean"]}, server.state

    def learn(self, server: Server, ids: Tensor, updates: ClientUpdate) -> State:
        """Train what decides at the server, such as agents, after the round's aggregation.

        It is called once per round, after `aggregate`. What this round's weights depend on cannot be
        learned here.

        Args:
            server: The server, with the new global model and the state that `aggregate` returned.
            ids: The clients whose replies were aggregated `[K]`.
            updates: Their uploads `[K, ...]`. Where `aggregates_by_sum`, only their metrics.

        Returns:
            The server's state for the next round.
        """
        return server.state

    def num_rounds(self, asked: int) -> int:
        """Rounds of the run; a method whose budget is not counted in rounds works them out."""
        return asked

    def should_stop(self, server: Server) -> str | None:
        """Decision 0: the reason to end the run now, or ``None``."""
        return None

    # --- shared -----------------------------------------------------------------------------------------------------

    def shared_blocks(self, task: Task) -> tuple[str, ...]:
        """The blocks that travel."""
        return matching_blocks(task.blocks, self.default_shared_blocks)

    def shared_param_names(self, task: Task) -> tuple[str, ...]:
        return tuple(name for block in self.shared_blocks(task) for name in task.blocks[block])

    def has_global(self, task: Task) -> bool:
        """Whether the server's model is complete: every block that has parameters travels."""
        travels = self.shared_blocks(task)
        return all(block in travels for block in task.blocks if task.blocks[block])


def merge_sent_blocks(client: Client) -> Params:
    """Blocks that were sent overwrite, the others stay as the client held them."""
    start: Params = {}
    for block, names in client.task.blocks.items():
        sent = client.message.sent_blocks[block]
        for name in names:
            if isinstance(sent, bool):
                start[name] = client.message.params[name] if sent else client.local_params[name]
            else:
                start[name] = torch.where(
                    sent, client.message.params[name], client.local_params[name]
                )
    return start


def equal_weights(ids: Tensor) -> Tensor:
    """One over K for each, for methods whose mean is not by data size."""
    return torch.full((len(ids),), 1.0 / len(ids), dtype=torch.float64)


def weights_by_num_examples(task: Task, ids: Tensor) -> Tensor:
    """The weights of these clients by the numbers of their samples."""
    n = task.num_examples(ids).double()
    return n / n.sum()


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
