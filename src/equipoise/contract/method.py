"""A method: a policy at the decisions of a round, both halves together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from equipoise.contract.blocks import chosen, demand
from equipoise.contract.client import Client
from equipoise.contract.ranges import Range
from equipoise.contract.server import Server
from equipoise.contract.task import Task
from equipoise.contract.words import Down, Train, Training, Up
from equipoise.core import random
from equipoise.core.errors import UsageError
from equipoise.core.options import Options
from equipoise.core.trees import State, Tree

HOOKS = (
    *("select", "give", "install", "decide", "update", "upload"),
    *("weigh", "sums", "step", "aggregate", "personal", "stop"),
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
    shares: ClassVar[tuple[str, ...]] = ("backbone", "head")
    """The blocks that travel, by role (see :mod:`equipoise.contract.blocks`) or by name."""
    keeps_model: ClassVar[bool] = False
    """Whether a client needs the model it held before (any method whose install reads ``c.local``)."""
    search: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Options that tuning may change, with their ranges: whole numbers, or numbers on a logarithmic scale."""
    model: ClassVar[str] = ""
    """The model that it is made for, where the task offers it and the user asks for no other."""
    one_start: ClassVar[bool] = False
    """Whether its memory is sound only if all clients start from one whole model (control variates and their like)."""
    tries: ClassVar[bool] = False
    """Whether its clients also train on trial, beside what they decided: no deadline can be met by deciding less."""
    prompt: ClassVar[bool] = False
    """Whether its server counts on each reply in the very round that asked for it (agents that are rewarded then)."""
    trains: ClassVar[str] = "gradient"
    """What it trains: ``gradient`` for any model under SGD, else the kind of agent that a task must have."""
    reports: ClassVar[Mapping[str, Range]] = {}
    """What clients upload beside their models, by the name in ``metrics`` or ``extra``, and which numbers are sound."""
    summed: ClassVar[bool] = True
    """Whether ``weigh`` reads no more of uploads than their metrics, and the new model follows from ``sums`` alone, so
    that uploads need not be brought together. A class that defines ``weigh`` or ``aggregate`` and does not say so is
    taken for one that must see every upload."""
    forwards: ClassVar[bool] = True
    """Whether the hooks that this very class defines only stand in for decisions; never set by a method."""
    _own: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        deciding = [kind for kind in cls.__mro__ if not vars(kind).get("forwards", False)]
        if "summed" not in vars(cls) and {"weigh", "aggregate"} & vars(cls).keys():
            cls.summed = False
        cls._own = frozenset(hook for hook in HOOKS if any(hook in vars(kind) for kind in deciding))

    @property
    def decides(self) -> frozenset[str]:
        """The hooks at which this method decides itself, where the defaults would do as FedAvg does."""
        return self._own

    @property
    def patient(self) -> bool:
        """Whether a reply may count in a later round than the one that asked for it."""
        return not (self.one_start or self.prompt or "give" in self.decides)

    def check(self, task: Task, training: Training) -> None:
        """Refuse an unsound combination, with a sentence that says why."""
        demand(task.blocks, self.shares, self.name)
        if len(self.travels(task)) not in (0, len(task.blocks)):
            self.needs_two_blocks(task)

    def needs_two_blocks(self, task: Task) -> None:
        if not (task.names_of("backbone") and task.names_of("head")):
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

    def select(self, s: Server) -> tuple[Tensor, State]:
        """Decision 0: the clients of this round, ascending; by default a cohort drawn by the seed alone."""
        return torch.from_numpy(random.cohort(s.seed, s.round, s.task.clients, s.participation)), s.state

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        """Decision 4: what each of these clients is sent."""
        travels = self.travels(s.task)
        return Down(s.params, {block: block in travels for block in s.task.blocks}), s.state

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        """Decision 3: weights ``[K]``, or per name with the parameter's own shape behind; summing to one over K."""
        return by_size(s.task, ids), s.state

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        """Decision 3b: the next global model; need not be a weighted mean, nor made of sums."""
        return self.step(s, self.sums(s.params, up, weights))

    def sums(self, sent: Tree, up: Up, weights: Tensor | Tree) -> State:
        """Sums over these clients, who were ``sent`` this model: those of parts of a cohort add up to those of all."""
        return {"mean": weighted_mean(up.params, weights)}

    def step(self, s: Server, sums: State) -> tuple[Tree, State]:
        """The next global model from the sums over all clients that replied."""
        return {**s.params, **sums["mean"]}, s.state

    def planned_rounds(self, asked: int) -> int:
        """Rounds of the run; a method whose budget is not counted in rounds works them out."""
        return asked

    def stop(self, s: Server) -> str | None:
        """Decision 0: the reason to end the run now, or ``None``."""
        return None

    # --- shared -----------------------------------------------------------------------------------------------------

    def travels(self, task: Task) -> tuple[str, ...]:
        """The blocks that travel."""
        return chosen(task.blocks, self.shares)

    def shared_names(self, task: Task) -> tuple[str, ...]:
        return tuple(name for block in self.travels(task) for name in task.blocks[block])

    def has_global(self, task: Task) -> bool:
        """Whether the server's model is complete: every block that has parameters travels."""
        travels = self.travels(task)
        return all(block in travels for block in task.blocks if task.blocks[block])


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


def by_size(task: Task, ids: Tensor) -> Tensor:
    """The weights of these clients by the numbers of their samples."""
    n = task.sizes(ids).double()
    return n / n.sum()


def weighted_mean(stack: Tree, weights: Tensor | Tree) -> Tree:
    """Sum over K of weights times models; weights ``[K]``, or per name ``[K, ...]``."""
    if isinstance(weights, dict):
        return {name: (weights[name] * value).sum(0) for name, value in stack.items()}
    return {name: torch.tensordot(weights.to(value.dtype), value, 1) for name, value in stack.items()}
