"""Two executors with one meaning: ``Loop`` takes one client after another, ``Stacked`` all along a leading axis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from equipoise.contract import Down, Held, Method, Reply, State, Task, Training, Tree, When
from equipoise.contract.method import by_size
from equipoise.core import trees
from equipoise.core.trees import Ints
from equipoise.records.scores import OwnScores
from equipoise.runtime import chunks, primitives
from equipoise.runtime.adopt import Facts
from equipoise.runtime.client import RunningClient, client_round
from equipoise.runtime.store import HELD

WORTH_STACKING = 48  # smaller stacks of dense models lose more to the overhead of calls than another core gains


Judged = Callable[[], dict[str, Tree]]
"""Scores of the server's model, by split."""


@dataclass
class Replies:
    """What came back of a round, and why some of it did not."""

    rows: Tensor
    """Places of the clients that replied among those that were asked, ascending."""
    stack: Reply | None
    """Their replies, stacked ``[R, ...]``; ``None`` if nobody replied."""
    absent: dict[int, str] = field(default_factory=dict)
    unsent: frozenset[int] = frozenset()
    """Clients that could not be reached at all: they are not billed."""
    known: Facts | None = None
    """Their facts, where those are known already."""
    size: int | None = None
    """Bytes of one upload, where uploads are not in the stack."""
    kept: bool = False
    """Whether what clients hold is kept already."""
    weights: Tensor = field(default_factory=lambda: torch.empty(0))
    """Those by which sums over all clients are known already, if any are."""

    def foreseen(self, taken: Tensor, weights: Tensor | Tree) -> bool:
        """Whether these are the sums that are known already."""
        return bool(taken.all()) and isinstance(weights, Tensor) and torch.equal(weights, self.weights)

    def facts(self, method: Method, sent: Tree) -> Facts:
        """What decides which of them are used."""
        assert self.stack is not None
        return self.known or Facts.of(method, sent, self.stack)

    def upload_bytes(self) -> int:
        """Bytes of one upload."""
        if self.size is not None:
            return self.size
        return trees.tree_bytes(self.stack.up, stacked=True) if self.stack else 0

    def settle(self, taken: Tensor) -> None:
        """Tell where clients are whose reply counted: the others keep what they held."""

    @classmethod
    def of_all(cls, ids: Tensor, stack: Reply) -> Replies:
        """Everybody replied."""
        return cls(torch.arange(len(ids)), stack)

    def sums(self, method: Method, sent: Tree, cuts: list[slice], taken: Tensor, weights: Tensor | Tree) -> State:
        """The method's sums over the ``taken`` replies, whose ``weights`` these are, chunk by chunk of those asked."""
        assert self.stack is not None
        parts: list[State | None] = []
        for chunk in cuts:
            here = (self.rows >= chunk.start) & (self.rows < chunk.stop)
            up = self.stack.up if bool(here.all()) else trees.row(self.stack.up, here)
            parts.append(chunks.summed(method, sent, up, taken[here], trees.row(weights, here[taken])))
        return chunks.added(parts)


class Executor(ABC):
    """Runs the client half of a method for a cohort."""

    fewest: int = 1
    """Usable replies below which the round changes nothing."""
    keeps_models: bool = True
    """Whether what clients hold is kept here; else they keep it themselves, elsewhere."""

    processes: int = 1
    """How many compute clients, where each keeps what its clients hold."""

    def __init__(self, method: Method, task: Task, training: Training, seed: int, rounds: int) -> None:
        self.method, self.task, self.training, self.seed, self.rounds = method, task, training, seed, rounds

    def cuts(self, clients: int) -> list[slice]:
        """The chunks of a cohort of so many clients. What is not worth stacking is shared client by client."""
        return chunks.cut(clients, 1 if self.task.measured else WORTH_STACKING)

    @abstractmethod
    def run(self, round: int, ids: Tensor, down: Down, held: Held, splits: tuple[str, ...]) -> Replies:
        """``held``: stacks of what is kept of these clients; replies have it as it is after the round."""

    def fresh(self, ids: Tensor, initial: Tree, keeps_local: bool) -> Held:
        """Stacks of what is kept of clients that never took part."""
        return fresh_clients(self.method, self.task, ids, initial, keeps_local)

    def foreseen(self, method: Method, ids: Tensor) -> Tensor:
        """The weights of all these clients, if no reply is needed to know them; else empty."""
        known = method.summed and not {"weigh", "sums"} & method.decides
        return by_size(self.task, ids) if known else torch.empty(0)

    def expect(self, ids: Ints) -> None:  # noqa: B027 (there is nothing to do where nothing is on disk)
        """These clients are likely to be asked in the round after the next :meth:`run`."""

    def judge(self, params: Tree, splits: tuple[str, ...]) -> Judged:
        """Begin to evaluate the server's model on its own sets; to be called for the result before anything else."""
        return lambda: judged(self.task, params, splits)

    def collect(self, ids: Ints, names: tuple[str, ...] = HELD) -> State:
        """What these clients hold, where the simulation's own store does not have it."""
        return {}

    def take(self, ids: Ints, kept: State) -> State:
        """From all that a checkpoint has of these clients, what the simulation's own store is to have."""
        return kept

    def closing(self, ids: Ints) -> Mapping[int, OwnScores]:
        """What these clients say of the models that they keep, where that is not known here."""
        return {}

    def one(self, round: int, splits: tuple[str, ...], id: Tensor, down: Down, held: Held) -> Reply:
        """One client's round."""
        method, training = self.method.at(round, self.rounds), self.training.at(round, self.rounds)
        client = RunningClient(self.task, training, When(self.seed, round, training), self.rounds, id, down, held)
        return client_round(method, client, splits)


class Local(Executor):
    """In this process, chunk by chunk."""

    @abstractmethod
    def chunk(self, round: int, ids: Tensor, down: Down, held: Held, splits: tuple[str, ...]) -> Reply:
        """The replies of one chunk: what they are depends on nobody outside it."""

    def run(self, round: int, ids: Tensor, down: Down, held: Held, splits: tuple[str, ...]) -> Replies:
        with torch.no_grad():
            cuts = [chunks.rows(cut) for cut in self.cuts(len(ids))]
            if len(cuts) == 1:
                return Replies.of_all(ids, self.chunk(round, ids, down, held, splits))
            parts = (self.chunk(round, ids[here], down.row(here), trees.row(held, here), splits) for here in cuts)
            return Replies.of_all(ids, trees.gathered(parts, len(ids)))


class Loop(Local):
    """One client after another: obvious, the oracle of the others."""

    def chunk(self, round: int, ids: Tensor, down: Down, held: Held, splits: tuple[str, ...]) -> Reply:
        each = range(len(ids))
        return trees.stack([self.one(round, splits, ids[k], down.row(k), trees.row(held, k)) for k in each])


class Stacked(Local):
    """All clients of a chunk at once."""

    def cuts(self, clients: int) -> list[slice]:
        return chunks.cut(clients, WORTH_STACKING)

    def chunk(self, round: int, ids: Tensor, down: Down, held: Held, splits: tuple[str, ...]) -> Reply:
        def mapped(id: Tensor, down: Down, held: Held) -> Reply:
            return self.one(round, splits, id, down, held)

        return primitives.over_clients(mapped, (0, down.axes(), 0), (ids, down, held), len(ids))


def judged(task: Task, params: Tree, splits: tuple[str, ...]) -> dict[str, Tree]:
    """Scores of one model on the server's own sets; that of clients' validation is public."""
    one = {name: value.unsqueeze(0) for name, value in params.items()}
    sets = {"test": "test", "val": "public"}
    with torch.no_grad():
        return {split: trees.row(task.evaluate_server(one, sets[split]), 0) for split in splits}


def fresh_clients(method: Method, task: Task, ids: Tensor, initial: Tree, keeps_local: bool) -> Held:
    """Stacks of what clients hold before their first round."""

    def spread(tree: State) -> State:
        copies: State = trees.map_leaves(lambda value: value.expand(len(ids), *value.shape).clone(), tree)
        return copies

    local = spread(initial) if keeps_local else {}
    return Held(local, spread(method.client_init(task, initial)), task.source_init(ids))
