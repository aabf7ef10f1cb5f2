"""What goes in and out of a round's hooks: models, states, messages, calls for training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from equipoise.config.schedules import Scheduled
from equipoise.config.schema import Options, option
from equipoise.utils.pytree import Params, State, index, message, static_field, to_dict

Blocks = Mapping[str, tuple[str, ...]]
"""Which parameters belong to which block of the model; any number of blocks, each parameter in one."""

Loss = Callable[[Params, Tensor, Tensor, State], Tensor]
"""A training loss for one client: ``(params, x, y, aux) -> losses [B]``, one entry per sample."""


@dataclass(frozen=True)
class TrainingConfig(Options):
    """How clients train unless a method decides otherwise."""

    epochs: Scheduled[int] = option(1, "local epochs per round", low=1)
    lr: Scheduled[float] = option(0.1, "learning rate of local SGD", above=0)
    batch_size: int = option(32, "samples per local step", low=1)
    weight_decay: Scheduled[float] = option(0.0, "L2 penalty of local SGD", low=0)
    momentum: Scheduled[float] = option(
        0.0, "momentum of local SGD, started anew each round", low=0, below=1
    )


@message
@dataclass
class LocalHParams:
    """Decision 1, as proposed or as taken: per client, a whole number of epochs and a learning rate."""

    epochs: Tensor
    lr: Tensor


@message
@dataclass
class ServerMessage:
    """Decision 4: what the server sends at the start of a round, to all clients of it; :meth:`row` is one client's."""

    params: Params
    """The global model. Only the blocks marked in ``sent`` travel."""
    sent_blocks: Mapping[str, bool | Tensor]
    """Per block: sent to everybody, to nobody, or to whom (booleans ``[K]``). This is what is billed."""
    hparams: LocalHParams | None = None
    """The server's proposal for decision 1; ``None`` means as configured, and nothing is sent."""
    broadcast: State = field(default_factory=dict)
    """What a method broadcasts (SCAFFOLD's c)."""
    per_client: State = field(default_factory=dict)
    """What a method sends to each client separately: leading axis ``[K]``."""

    def for_clients(self, which: int | slice | Tensor) -> ServerMessage:
        """What one client is sent, or some clients: what differs between clients is taken from its leading axis."""
        sent = {
            block: value if isinstance(value, bool) else value[which]
            for block, value in self.sent_blocks.items()
        }
        train = None if self.hparams is None else index(self.hparams, which)
        return replace(
            self, sent_blocks=sent, hparams=train, per_client=index(self.per_client, which)
        )

    def vmap_axes(self) -> ServerMessage:
        """The same shape with 0 where clients have entries of their own, and ``None`` for what they share."""
        own, shared = (partial(tree_map, lambda _, axis=axis: axis) for axis in (0, None))
        sent: Any = {
            block: None if isinstance(value, bool) else 0
            for block, value in self.sent_blocks.items()
        }
        train = None if self.hparams is None else own(self.hparams)
        return ServerMessage(
            shared(self.params), sent, train, shared(self.broadcast), own(self.per_client)
        )


@message
@dataclass
class ClientUpdate:
    """Decision 2: what a client uploads. All of it is billed."""

    params: Params
    extra: State = field(default_factory=dict)
    metrics: Params = field(default_factory=dict)


@message
@dataclass
class ClientState:
    """What a client keeps between rounds."""

    local_params: Params = field(default_factory=dict)
    """The model that it holds; empty where no hook reads it."""
    state: State = field(default_factory=dict)
    data_state: State = field(default_factory=dict)
    """State of its data source or environment."""
    personal: Params | None = None
    """The model that it would use, where that is not the one it holds."""


Scores = dict[str, dict[str, Params]]
"""By split and by named evaluation (``received``, ``trained``, ``personal``): the metrics of a model."""


@message
@dataclass
class ClientResult:
    """What comes out of a client's round. Only ``up`` is sent and billed; the runtime keeps or logs the rest."""

    update: ClientUpdate
    client_state: ClientState = field(default_factory=ClientState)
    hparams: LocalHParams | None = None
    """Decision 1 as taken; ``None`` where privacy keeps it at the client."""
    num_steps: Tensor | None = None
    """Gradient steps that all training of the round took; ``None`` likewise."""
    scores: Scores = field(default_factory=dict)
    logged: Params = field(default_factory=dict)

    def to_message(self) -> State:
        """What leaves a client that is elsewhere: all but what it holds."""
        return {name: value for name, value in to_dict(self).items() if name != "client_state"}


@message
@dataclass
class ProximalTerm:
    """The quadratic part of a local objective: strength/2 * |params - anchor|^2.

    With ``follow`` > 0 the anchor itself moves after each batch, anchor += follow * (params - anchor) (pFedMe's w_i).
    """

    anchor: Params
    mu: float | Tensor
    anchor_lr: float | Tensor = 0.0


@message
@dataclass
class LocalTrainRequest:
    """One call for local training, as it reaches the task: tensors of one client, or of a stack."""

    params: Params
    epochs: Tensor
    lr: Tensor
    proximal: ProximalTerm | None = None
    grad_correction: Params | None = None
    aux: State = field(default_factory=dict)
    trainable: tuple[str, ...] = static_field(())
    """The parameters that move."""
    loss: Loss | None = static_field(None)  # noqa: RUF009 (a field, as its name says)
    data_range: tuple[float, float] = static_field((0.0, 1.0))
    """The share of the client's training rows that is used: support and query halves, FedALA's 80 %."""
    steps_per_batch: int = static_field(1)
    """Steps on each batch before the next is drawn."""
    clamp: tuple[float, float] | None = static_field(None)
    stream: int = static_field(0)
    """Calls of one round with different streams see different batch orders."""


@dataclass(frozen=True)
class RngContext:
    """Where in the run a random draw stands: together with the client's id it fixes the draw."""

    seed: int
    round: int
    training: TrainingConfig
