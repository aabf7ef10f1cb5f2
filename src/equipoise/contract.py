"""The words of the design, and nothing else.

One federated round is six decisions: who takes part (0), how a client trains (1), what it uploads (2), how the server
forms the aggregate (3), which part each client gets back and how it installs it (4), which model is the personal one
(5). A :class:`Method` is a policy at these points; its defaults are FedAvg.

Client code is written for ONE client: executors map it over many. Server code sees stacks ``[K, ...]`` of the clients
that really replied. State goes in and comes out of every hook; nothing is kept anywhere else.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from equipoise.errors import UsageError

Tree = dict[str, Tensor]
"""A model: parameter names to tensors. One client has plain shapes, a stack has one leading axis more."""

State = dict[str, Any]
"""What a client or the server keeps between rounds: nested dictionaries of tensors."""

Blocks = Mapping[str, tuple[str, ...]]
"""Which parameters belong to the ``backbone`` and which to the ``head``; declared by the model."""

Loss = Callable[[Tree, Tensor, Tensor, State], Tensor]
"""A training loss for one client: ``(params, x, y, aux) -> losses [B]``, one entry a sample."""


def option(default: Any, help: str) -> Any:
    """A field of a typed config: its default, and the sentence that the command line shows for it."""
    return field(default=default, metadata={"help": help})


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


class Client(ABC):
    """All that one client knows in one round, and all that it can do with its own data."""

    id: Tensor
    round: int
    rounds: int
    task: Task
    training: Training
    down: Down
    local: Tree
    """The model it held before the download."""
    state: State
    start: Tree
    """After decision 4: what it trains from."""
    train: Train
    """Decision 1 as taken."""
    trained: Tree
    """After local training."""
    notes: Tree
    """What hooks want to see in the round's log; costs no bytes."""

    @property
    @abstractmethod
    def source(self) -> State:
        """State of its data source or environment, such as visit counts; to read, for only :meth:`fit` moves it."""

    @abstractmethod
    def fit(
        self,
        params: Tree,
        *,
        train: Train | None = None,
        pull: Pull | None = None,
        linear: Tree | None = None,
        blocks: tuple[str, ...] | None = None,
        loss: Loss | None = None,
        aux: State | None = None,
        part: tuple[float, float] = (0.0, 1.0),
        repeat: int = 1,
        clamp: tuple[float, float] | None = None,
        stream: int = 0,
        training: Training | None = None,
    ) -> Tree:
        """Local SGD on loss(params) + <linear, params> + pull, moving only ``blocks``; by default on decision 1.

        ``training`` replaces the run's batch size, momentum and weight decay for this call.
        """

    @abstractmethod
    def fit_following(self, params: Tree, pull: Pull, **how: Any) -> tuple[Tree, Tree]:
        """As :meth:`fit`, with an anchor that follows; gives both."""

    @abstractmethod
    def evaluate(self, params: Tree, split: str = "val") -> Tree:
        """Scores of a model on the client's own data: ``val`` is the only split that a decision may read."""

    @abstractmethod
    def uniform(self, *shape: int, stream: int = 0) -> Tensor:
        """Random numbers in [0, 1) that depend on (seed, client, round, stream) only."""

    @abstractmethod
    def steps(self, train: Train, part: tuple[float, float] = (0.0, 1.0)) -> Tensor:
        """The number of batches that ``train`` means for this client, on this share of its rows."""

    @abstractmethod
    def label_counts(self) -> Tensor:
        """Training samples of each class, if the task has labels."""

    @abstractmethod
    def rows(self, split: str) -> Tensor:
        """Samples that it holds in this split: how far a score on them can be trusted."""

    @abstractmethod
    def anybody(self, condition: Tensor) -> bool:
        """Whether it holds for any client computed along with this one: only to skip work that would change nothing."""

    def within(self, key: str) -> Self:
        """The same client seen by a method that is part of another: its state is the part under ``key``."""
        inner = copy.copy(self)
        inner.state = self.state[key]
        return inner


@dataclass
class Server:
    """All that the server knows in one round."""

    task: Task
    training: Training
    params: Tree
    state: State
    seed: int
    round: int
    rounds: int
    notes: State = field(default_factory=dict)
    """What hooks want to see in the round's log."""

    def evaluate(self, stack: Tree, split: str = "public") -> Tree:
        """Scores ``[K]`` of a stack of models on the server's own data."""
        return self.task.evaluate_server(stack, split)

    def within(self, key: str) -> Server:
        """The same server seen by a method that is part of another."""
        inner = copy.copy(self)
        inner.state = self.state[key]
        return inner


class Task(ABC):
    """What is learned: a model, its blocks, every client's data or environment, and how to train and score it."""

    name: str
    clients: int
    blocks: Blocks
    training: Training
    """The task's own defaults of local training."""
    headline: str = "acc"
    """The score that tables and stopping rules read."""
    higher_is_better: bool = True

    @abstractmethod
    def init_params(self, seed: int) -> Tree:
        """The one initial model of a run."""

    @abstractmethod
    def sizes(self, ids: Tensor) -> Tensor:
        """Training samples of each of these clients, as int64."""

    def rows(self, ids: Tensor, split: str) -> Tensor:
        """Samples of each of these clients in a split; as many as for training where splits are no rows."""
        return self.sizes(ids)

    @abstractmethod
    def steps(self, ids: Tensor, epochs: Tensor, training: Training, part: tuple[float, float] = (0.0, 1.0)) -> Tensor:
        """SGD steps that so many epochs, on this share of the rows, mean for each of these clients."""

    @abstractmethod
    def fit(self, ids: Tensor, fit: Fit, source: State, when: When) -> tuple[Tree, Tree, State]:
        """Train one client; gives parameters, anchor (empty without one) and the source's state."""

    @abstractmethod
    def fit_stack(self, ids: Tensor, fit: Fit, source: State, when: When) -> tuple[Tree, Tree, State]:
        """Train a stack of clients; must mean the same as :meth:`fit` for each."""

    @abstractmethod
    def evaluate(self, ids: Tensor, params: Tree, split: str) -> Tree:
        """Scores of one client's model on its own split."""

    @abstractmethod
    def evaluate_stack(self, ids: Tensor, params: Tree, split: str) -> Tree:
        """Scores ``[K]`` of a stack of models, each on its own client's split."""

    @abstractmethod
    def evaluate_server(self, stack: Tree, split: str) -> Tree:
        """Scores ``[K]`` of a stack of models on the server's ``public`` or ``test`` set."""

    def source_init(self, ids: Tensor) -> State:
        """State of the clients' data sources, stacked: an environment's, a replay buffer; data sets have none."""
        return {}

    def has(self, split: str) -> bool:
        """Whether clients hold this split (``val`` may be switched off)."""
        return True

    def merit(self, scores: Tree) -> tuple[Tensor, Tensor]:
        """What decisions compare, from the scores of a model: a number in [0, 1], higher is better, and a loss."""
        return scores["acc"], scores["loss"]

    def summary(self, params: Tree) -> State:
        """What the summary of a run holds beyond the named evaluations, from the final global model."""
        return {}

    def suits(self, method: Method) -> None:  # noqa: B027 (most tasks serve any method)
        """Refuse a method that cannot work here, before any work starts."""

    def check(self) -> None:  # noqa: B027 (a task may have nothing to refuse)
        """Refuse bad data before any work starts."""


@dataclass(frozen=True)
class When:
    """Where in the run a random draw stands: together with the client's id it fixes the draw."""

    seed: int
    round: int
    training: Training


@dataclass(frozen=True)
class Method:
    """A policy at the decisions of a round; its fields are its options. The defaults are FedAvg.

    Hooks that may change state return it beside their result, so that it cannot be forgotten.
    """

    name: ClassVar[str]
    shares: ClassVar[tuple[str, ...]] = ("backbone", "head")
    """The blocks that travel."""
    keeps_model: ClassVar[bool] = False
    """Whether a client needs the model it held before (any method whose install reads ``c.local``)."""
    search: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Options that tuning may change, with their ranges: whole numbers, or numbers on a logarithmic scale."""
    model: ClassVar[str] = ""
    """The model that it is made for, where the task offers it and the user asks for no other."""
    one_start: ClassVar[bool] = False
    """Whether its memory is sound only if all clients start from one whole model (control variates and their like)."""
    needs_everybody: ClassVar[bool] = False
    """Whether every client must take part in every round (a server agent with one input a client)."""

    def check(self, task: Task, training: Training) -> None:
        """Refuse an unsound combination, with a sentence that says why."""
        if set(self.shares) not in (set(), {"backbone", "head"}):
            self.needs_two_blocks(task)

    def needs_two_blocks(self, task: Task) -> None:
        if not (task.blocks["backbone"] and task.blocks["head"]):
            raise UsageError(
                f"{self.name} treats backbone and head differently, but the model of task '{task.name}' is one layer: "
                "choose a deeper one (--model mlp)"
            )

    # --- client half: ONE client ------------------------------------------------------------------------------------

    def client_init(self, task: Task, params: Tree) -> State:
        """State of a client that takes part for the first time."""
        return {}

    def install(self, c: Client) -> tuple[Tree, State]:
        """Decision 4b: merge what came down into what is held."""
        return take_sent(c), c.state

    def decide(self, c: Client) -> tuple[Train, State]:
        """Decision 1: the server's proposal, else as configured."""
        return c.train, c.state

    def update(self, c: Client) -> tuple[Tree, State]:
        """Local training under decision 1."""
        return c.fit(c.start), c.state

    def upload(self, c: Client) -> tuple[Up, State]:
        """Decision 2."""
        return Up({name: c.trained[name] for name in self.shared_names(c.task)}), c.state

    def personal(self, c: Client) -> Tree:
        """Decision 5: the model that the client would use."""
        return c.trained

    # --- server half: stacks [K, ...] of the clients that replied ---------------------------------------------------

    def server_init(self, task: Task, params: Tree) -> State:
        return {}

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        """Decision 4: what each of these clients is sent."""
        return Down(s.params, {block: block in self.shares for block in s.task.blocks}), s.state

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        """Decision 3: weights ``[K]``, or per name with the parameter's own shape behind; summing to one over K."""
        n = s.task.sizes(ids).double()
        return n / n.sum(), s.state

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        """Decision 3b: the next global model; need not be a weighted mean."""
        return {**s.params, **weighted_mean(up.params, weights)}, s.state

    def planned_rounds(self, asked: int) -> int:
        """Rounds of the run; a method whose budget is not counted in rounds works them out."""
        return asked

    def stop(self, s: Server) -> str | None:
        """Decision 0: the reason to end the run now, or ``None``."""
        return None

    # --- shared -----------------------------------------------------------------------------------------------------

    def shared_names(self, task: Task) -> tuple[str, ...]:
        return tuple(name for block in task.blocks if block in self.shares for name in task.blocks[block])

    def has_global(self, task: Task) -> bool:
        """Whether the server's model is complete: every block that has parameters travels."""
        return all(block in self.shares for block in task.blocks if task.blocks[block])


def take_sent(c: Client) -> Tree:
    """Blocks that were sent overwrite, the others stay as the client held them."""
    start: Tree = {}
    for block, names in c.task.blocks.items():
        sent = c.down.sent[block]
        for name in names:
            if isinstance(sent, bool):
                start[name] = c.down.params[name] if sent else c.local[name]
            else:
                start[name] = torch.where(sent, c.down.params[name], c.local[name])
    return start


def equal_weights(ids: Tensor) -> Tensor:
    """One over K for each, for methods whose mean is not by data size."""
    return torch.full((len(ids),), 1.0 / len(ids), dtype=torch.float64)


def weighted_mean(stack: Tree, weights: Tensor | Tree) -> Tree:
    """Sum over K of weights times models; weights ``[K]``, or per name ``[K, ...]``."""
    if isinstance(weights, dict):
        return {name: (weights[name] * value).sum(0) for name, value in stack.items()}
    return {name: torch.tensordot(weights.to(value.dtype), value, 1) for name, value in stack.items()}
