"""What goes in and out of a round's hooks: models, states, messages, calls for training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from equipoise.core.options import Options, option
from equipoise.core.schedules import OverRounds
from equipoise.core.trees import State, Tree, message, plain, row, static

Blocks = Mapping[str, tuple[str, ...]]
"""Which parameters belong to which block of the model; any number of blocks, each parameter in one."""

Loss = Callable[[Tree, Tensor, Tensor, State], Tensor]
"""A training loss for one client: ``(params, x, y, aux) -> losses [B]``, one entry per sample."""


@dataclass(frozen=True)
class Training(Options):
    """How clients train unless a method decides otherwise."""

    epochs: OverRounds[int] = option(1, "local epochs per round", low=1)
    lr: OverRounds[float] = option(0.1, "learning rate of local SGD", above=0)
    batch_size: int = option(32, "samples per local step", low=1)
    weight_decay: OverRounds[float] = option(0.0, "L2 penalty of local SGD", low=0)
    momentum: OverRounds[float] = option(0.0, "momentum of local SGD, started anew each round", low=0, below=1)


@message
@dataclass
class Train:
    """Decision 1, as proposed or as taken: per client, a whole number of epochs and a learning rate."""

    epochs: Tensor
    lr: Tensor


@message
@dataclass
class Down:
    """Decision 4: what the server sends at the start of a round, to all clients of it; :meth:`row` is one client's."""

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

    def row(self, which: int | slice | Tensor) -> Down:
        """What one client is sent, or some clients: what differs between clients is taken from its leading axis."""
        sent = {block: value if isinstance(value, bool) else value[which] for block, value in self.sent.items()}
        train = None if self.train is None else row(self.train, which)
        return replace(self, sent=sent, train=train, each=row(self.each, which))

    def axes(self) -> Down:
        """The same shape with 0 where clients have entries of their own, and ``None`` for what they share."""
        own, shared = (partial(tree_map, lambda _, axis=axis: axis) for axis in (0, None))
        sent: Any = {block: None if isinstance(value, bool) else 0 for block, value in self.sent.items()}
        train = None if self.train is None else own(self.train)
        return Down(shared(self.params), sent, train, shared(self.extra), own(self.each))


@message
@dataclass
class Up:
    """Decision 2: what a client uploads. All of it is billed."""

    params: Tree
    extra: State = field(default_factory=dict)
    metrics: Tree = field(default_factory=dict)


@message
@dataclass
class Held:
    """What a client keeps between rounds."""

    local: Tree = field(default_factory=dict)
    """The model that it holds; empty where no hook reads it."""
    state: State = field(default_factory=dict)
    source: State = field(default_factory=dict)
    """State of its data source or environment."""
    personal: Tree | None = None
    """The model that it would use, where that is not the one it holds."""


Scores = dict[str, dict[str, Tree]]
"""By split and by named evaluation (``received``, ``trained``, ``personal``): the metrics of a model."""


@message
@dataclass
class Reply:
    """What comes out of a client's round. Only ``up`` is sent and billed; the runtime keeps or logs the rest."""

    up: Up
    held: Held = field(default_factory=Held)
    train: Train | None = None
    """Decision 1 as taken; ``None`` where privacy keeps it at the client."""
    steps: Tensor | None = None
    """Gradient steps that all training of the round took; ``None`` likewise."""
    scores: Scores = field(default_factory=dict)
    notes: Tree = field(default_factory=dict)

    def sent(self) -> State:
        """What leaves a client that is elsewhere: all but what it holds."""
        return {name: value for name, value in plain(self).items() if name != "held"}


@message
@dataclass
class Pull:
    """The quadratic part of a local objective: strength/2 * |params - anchor|^2.

    With ``follow`` > 0 the anchor itself moves after each batch, anchor += follow * (params - anchor) (pFedMe's w_i).
    """

    anchor: Tree
    strength: float | Tensor
    follow: float | Tensor = 0.0


@message
@dataclass
class Fit:
    """One call for local training, as it reaches the task: tensors of one client, or of a stack."""

    params: Tree
    epochs: Tensor
    lr: Tensor
    pull: Pull | None = None
    linear: Tree | None = None
    aux: State = field(default_factory=dict)
    names: tuple[str, ...] = static(())
    """The parameters that move."""
    loss: Loss | None = static(None)  # noqa: RUF009 (a field, as its name says)
    part: tuple[float, float] = static((0.0, 1.0))
    """The share of the client's training rows that is used: support and query halves, FedALA's 80 %."""
    repeat: int = static(1)
    """Steps on each batch before the next is drawn."""
    clamp: tuple[float, float] | None = static(None)
    stream: int = static(0)
    """Calls of one round with different streams see different batch orders."""


@dataclass(frozen=True)
class When:
    """Where in the run a random draw stands: together with the client's id it fixes the draw."""

    seed: int
    round: int
    training: Training
