"""What goes in and out of a round's hooks: models, states, messages, calls for training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from equipoise.core.options import option
from equipoise.core.trees import State, Tree

Blocks = Mapping[str, tuple[str, ...]]
"""Which parameters belong to the ``backbone`` and which to the ``head``; declared by the model."""

Loss = Callable[[Tree, Tensor, Tensor, State], Tensor]
"""A training loss for one client: ``(params, x, y, aux) -> losses [B]``, one entry a sample."""


@dataclass(frozen=True)
class Training:
    """How clients train unless a method decides otherwise."""

    epochs: int = option(1, "local epochs a round")
    lr: float = option(0.1, "learning rate of local SGD")
    batch_size: int = option(32, "samples a local step")
    weight_decay: float = option(0.0, "L2 penalty of local SGD")
    momentum: float = option(0.0, "momentum of local SGD, started anew each round")


@dataclass
class Train:
    """Decision 1, as proposed or as taken: per client, a whole number of epochs and a learning rate."""

    epochs: Tensor
    lr: Tensor


@dataclass
class Down:
    """Decision 4: what the server sends at the start of a round."""

    params: Tree
    """The global model. Only the blocks marked in ``sent`` travel."""
    sent: Mapping[str, bool | Tensor]
    """Per block: sent to everybody, to nobody, or to whom (booleans ``[K]``). This is what is billed."""
    train: Train | None = None
    """The server's proposal for decision 1; ``None`` means as configured, and nothing is sent."""
    extra: State = field(default_factory=dict)
    """What a method broadcasts (SCAFFOLD's c)."""
    each: State = field(default_factory=dict)
    """What a method sends to each client separately: leading axis ``[K]``."""


@dataclass
class Up:
    """Decision 2: what a client uploads. All of it is billed."""

    params: Tree
    extra: State = field(default_factory=dict)
    metrics: Tree = field(default_factory=dict)


@dataclass
class Pull:
    """The quadratic part of a local objective: strength/2 * |params - anchor|^2.

    With ``follow`` > 0 the anchor itself moves after each batch, anchor += follow * (params - anchor) (pFedMe's w_i).
    """

    anchor: Tree
    strength: float | Tensor
    follow: float | Tensor = 0.0


@dataclass
class Fit:
    """One call for local training, as it reaches the task: tensors of one client, or of a stack."""

    params: Tree
    epochs: Tensor
    lr: Tensor
    pull: Pull | None = None
    linear: Tree | None = None
    aux: State = field(default_factory=dict)
    names: tuple[str, ...] = ()
    """The parameters that move."""
    loss: Loss | None = None
    part: tuple[float, float] = (0.0, 1.0)
    """The share of the client's training rows that is used: support and query halves, FedALA's 80 %."""
    repeat: int = 1
    """Steps on each batch before the next is drawn."""
    clamp: tuple[float, float] | None = None
    stream: int = 0
    """Calls of one round with different streams see different batch orders."""


@dataclass(frozen=True)
class When:
    """Where in the run a random draw stands: together with the client's id it fixes the draw."""

    seed: int
    round: int
    training: Training
