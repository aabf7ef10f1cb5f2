"""Messages between server and clients, client state, and requests for local training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from equipoise.config.schema import Options, Scheduled, option
from equipoise.utils.errors import UsageError, did_you_mean
from equipoise.utils.pytree import (
    Params,
    State,
    index,
    map_leaves,
    message,
    static_field,
    to_dict,
)

Blocks = Mapping[str, tuple[str, ...]]
"""Block name to parameter names. Each parameter belongs to exactly one block."""

ROLES = ("backbone", "head")
"""Roles that published methods use. The head is the block of that name, or else the last block that
has parameters; the backbone is all the others. So "the head stays at the client" works for any
number of blocks."""

Loss = Callable[[Params, Tensor, Tensor, State], Tensor]
"""A training loss for one client: `(params, x, y, aux) -> losses [B]`, one per example."""
ROW_WEIGHTS = "row_weights"
"""Entry of `aux` that training fills with the weights `[B]` of the batch's examples in the mean, 0
for padding, if the caller put anything there. A loss needs them for means over the batch."""


class LinearStack(Protocol):
    """K models of one linear layer, each under cross-entropy on its own rows."""

    def logits(self, stack: Params, x: Tensor, prefix: str = "") -> Tensor:
        """Compute the logits.

        Args:
            stack: Weights `[K, C, F]` and biases `[K, C]`, by name.
            x: Inputs, `[K, B, F]`.
            prefix: Before the names of weight and bias, for a second head.

        Returns:
            Logits, `[K, B, C]`.
        """

    def gradients(
        self, logits: Tensor, x: Tensor, y: Tensor, weight: Tensor | float, prefix: str = ""
    ) -> Params:
        """Compute the gradients of the weighted cross-entropies.

        Args:
            logits: Logits, `[K, B, C]`.
            x: Inputs, `[K, B, F]`.
            y: Labels, `[K, B]`.
            weight: Weight of each example, `[K, B, 1]`, or one number for all.
            prefix: Before the names of weight and bias.

        Returns:
            Gradients by name, `[K, C, F]` and `[K, C]`.
        """


LinearGradients = Callable[[LinearStack, Params, Tensor, Tensor, State, Tensor | float], Params]
"""(models, stack, x, y, aux, weight of each example) to gradients, all `[K, ...]`."""


@dataclass(frozen=True)
class LinearLoss:
    """A `Loss` with the closed form of its gradients on one linear layer under cross-entropy.

    Stacks of clients are then trained without autograd.

    Attributes:
        losses: The loss of one client.
        gradients: Its gradients for a stack of clients, with the example weights.
    """

    losses: Loss
    gradients: LinearGradients

    def __call__(self, params: Params, x: Tensor, y: Tensor, aux: State) -> Tensor:
        """Compute the losses `[B]` of one client."""
        return self.losses(params, x, y, aux)


@dataclass(frozen=True)
class TrainingConfig(Options):
    """Options of local training; methods may choose other epochs and rates."""

    epochs: Scheduled[int] = option(1, "local epochs per round", low=1)
    lr: Scheduled[float] = option(0.1, "learning rate of local SGD", above=0)
    batch_size: int = option(32, "samples per local step", low=1)
    weight_decay: Scheduled[float] = option(0.0, "L2 penalty of local SGD", low=0)
    momentum: Scheduled[float] = option(
        0.0, "momentum of local SGD, reset each round", low=0, below=1
    )
    max_grad_norm: float = option(
        0.0, "largest norm of a local gradient, longer ones are scaled down; 0 for none", low=0
    )


@message
@dataclass
class LocalHParams:
    """Epochs and learning rate of local training (decision 1), proposed or chosen.

    Attributes:
        epochs: Whole number of local epochs, one client or `[K]`.
        lr: Learning rate, one client or `[K]`.
    """

    epochs: Tensor
    lr: Tensor


@message
@dataclass
class ServerMessage:
    """What the server sends to the clients of a round (decision 4).

    Attributes:
        params: The global model. Only blocks that are marked in `sent_blocks` are transferred.
        sent_blocks: Per block: sent to all (True), to none (False), or a mask `[K]`. Bytes are
            counted by this.
        hparams: The server's proposal for epochs and rate; None for the configured ones.
        broadcast: What a method sends to all clients (SCAFFOLD's c).
        per_client: What a method sends to each client, leading axis `[K]`.
        sent_rows: First and last (excluded) row that is sent of some parameters, `[K, 2]`. A client
            has the rows before from its last accepted round; those after are as at the start.
    """

    params: Params
    sent_blocks: Mapping[str, bool | Tensor]
    hparams: LocalHParams | None = None
    broadcast: State = field(default_factory=dict)
    per_client: State = field(default_factory=dict)
    sent_rows: Params = field(default_factory=dict)

    def for_clients(self, rows: int | slice | Tensor) -> ServerMessage:
        """Return the message to one client, or to some clients.

        Args:
            rows: Index into the leading axis `[K]`.
        """
        sent_blocks = {
            block: value if isinstance(value, bool) else value[rows]
            for block, value in self.sent_blocks.items()
        }
        return replace(
            self,
            sent_blocks=sent_blocks,
            hparams=None if self.hparams is None else index(self.hparams, rows),
            per_client=index(self.per_client, rows),
            sent_rows=index(self.sent_rows, rows),
        )

    def vmap_axes(self) -> ServerMessage:
        """Return the `in_dims` of `vmap`: 0 for values per client, None for shared ones."""
        own = partial(map_leaves, lambda _: 0)
        shared = partial(map_leaves, lambda _: None)
        sent: Any = {
            block: None if isinstance(value, bool) else 0
            for block, value in self.sent_blocks.items()
        }
        train = None if self.hparams is None else own(self.hparams)
        return ServerMessage(
            shared(self.params),
            sent,
            train,
            shared(self.broadcast),
            own(self.per_client),
            own(self.sent_rows),
        )


@message
@dataclass
class ClientUpdate:
    """What a client uploads (decision 2). All of it counts as uploaded bytes.

    Attributes:
        params: Shared parameters of the trained model.
        extra: Other tensors that a method uploads (SCAFFOLD's change of c_i).
        metrics: Numbers that the server's decisions read.
    """

    params: Params
    extra: State = field(default_factory=dict)
    metrics: Params = field(default_factory=dict)


@message
@dataclass
class ClientState:
    """What a client keeps between rounds.

    Attributes:
        local_params: Its model; empty if no hook reads it.
        state: State of the method's client half.
        data_state: State of its data source or environment.
        personal: Its personal model, where that differs from `local_params`.
    """

    local_params: Params = field(default_factory=dict)
    state: State = field(default_factory=dict)
    data_state: State = field(default_factory=dict)
    personal: Params | None = None


Scores = dict[str, dict[str, Params]]
"""Metrics of a model by split and by named evaluation (`received`, `trained`, `personal`)."""


@message
@dataclass
class ClientResult:
    """Result of a client's round. Only `update` is uploaded; the runtime keeps or logs the rest.

    Attributes:
        update: The upload.
        client_state: What the client keeps.
        hparams: Epochs and rate that were used; None where privacy keeps them at the client.
        num_steps: Gradient steps of the round; None where privacy keeps them at the client.
        scores: Metrics of the client's models.
        logged: Values that hooks want in the round's log.
    """

    update: ClientUpdate
    client_state: ClientState = field(default_factory=ClientState)
    hparams: LocalHParams | None = None
    num_steps: Tensor | None = None
    scores: Scores = field(default_factory=dict)
    logged: Params = field(default_factory=dict)

    def to_message(self) -> State:
        """Return what a remote client sends: everything but its own state."""
        return {name: value for name, value in to_dict(self).items() if name != "client_state"}


@message
@dataclass
class ProximalTerm:
    """Quadratic part of a local objective: mu / 2 * |params - anchor|^2.

    Attributes:
        anchor: The parameters that pull.
        mu: Strength.
        anchor_lr: If above 0 the anchor moves after each batch (pFedMe's w_i):
            anchor += anchor_lr * (params - anchor).
    """

    anchor: Params
    mu: float | Tensor
    anchor_lr: float | Tensor = 0.0


@message
@dataclass
class LocalTrainRequest:
    """One call for local training, of one client or of a stack `[K, ...]`.

    Attributes:
        params: The model to start from.
        epochs: Local epochs.
        lr: Learning rate.
        proximal: Quadratic term of the objective.
        grad_correction: Added to each gradient, by parameter name.
        aux: Further inputs of `loss`.
        trainable: Names of the parameters that are trained.
        loss: Replaces the task's loss.
        data_range: Part of the client's training rows, as fractions (FedALA uses 80 %).
        steps_per_batch: Steps on each batch before the next is drawn.
        clamp: Bounds of the parameters after each step.
        stream: Calls of one round with different streams see different batch orders.
    """

    params: Params
    epochs: Tensor
    lr: Tensor
    proximal: ProximalTerm | None = None
    grad_correction: Params | None = None
    aux: State = field(default_factory=dict)
    trainable: tuple[str, ...] = static_field(())
    loss: Loss | None = static_field(None)  # noqa: RUF009 (a field, as its name says)
    data_range: tuple[float, float] = static_field((0.0, 1.0))
    steps_per_batch: int = static_field(1)
    clamp: tuple[float, float] | None = static_field(None)
    stream: int = static_field(0)


@dataclass(frozen=True)
class RngContext:
    """Coordinates of a random draw: with the client's id they determine it."""

    seed: int
    round: int
    training: TrainingConfig


def head_of(blocks: Blocks) -> str:
    """Return the name of the block that has the role of the head."""
    filled = [block for block, names in blocks.items() if names]
    return "head" if "head" in blocks or not filled else filled[-1]


def matching_blocks(blocks: Blocks, names: Iterable[str]) -> tuple[str, ...]:
    """Return the blocks with one of these roles or names, in the model's order.

    Args:
        blocks: The model's blocks.
        names: Roles (`backbone`, `head`) or names of blocks.
    """
    names = set(names)
    head = head_of(blocks)
    return tuple(
        block
        for block in blocks
        if ROLES[block == head] in names or (block in names and block not in ROLES)
    )


def require_blocks(blocks: Blocks, names: Iterable[str], method_name: str) -> None:
    """Check that every wanted name is a role or a block.

    Args:
        blocks: The model's blocks.
        names: Roles or names of blocks.
        method_name: The method that asks, for the message.

    Raises:
        UsageError: If a name is unknown.
    """
    for block in names:
        if block not in blocks and block not in ROLES:
            raise UsageError(
                f"{method_name} names block '{block}', and the model's blocks are "
                f"{', '.join(blocks)}{did_you_mean(block, blocks)}"
            )
