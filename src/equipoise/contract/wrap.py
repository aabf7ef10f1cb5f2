"""A method around another: the one way in which methods are made private or robust, or are joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from torch import Tensor

from equipoise.contract.client import Client
from equipoise.contract.method import Method
from equipoise.contract.ranges import Range
from equipoise.contract.server import Server
from equipoise.contract.task import Task
from equipoise.contract.words import Down, Train, Training, Up
from equipoise.core.trees import State, Tree

T = TypeVar("T")


@dataclass(frozen=True)
class Wrapper(Method):
    """Every hook is that of the method below, whose state lies under ``base``; subclasses replace what they decide.

    A subclass calls ``super().weigh(s, ids, up)`` for what the method below would do.
    """

    forwards: ClassVar[bool] = True

    @property
    def below(self) -> Method:
        """The method that is wrapped."""
        raise NotImplementedError

    @property
    def decides(self) -> frozenset[str]:
        return self._own | self.below.decides

    @property
    def keeps_model(self) -> bool:  # type: ignore[override]
        return self.below.keeps_model

    @property
    def one_start(self) -> bool:  # type: ignore[override]
        return self.below.one_start

    @property
    def prompt(self) -> bool:  # type: ignore[override]
        return self.below.prompt

    @property
    def tries(self) -> bool:  # type: ignore[override]
        return self.below.tries

    @property
    def summed(self) -> bool:  # type: ignore[override]
        return self.below.summed

    @property
    def trains(self) -> str:  # type: ignore[override]
        return self.below.trains

    @property
    def reports(self) -> Mapping[str, Range]:  # type: ignore[override]
        return self.below.reports

    def check(self, task: Task, training: Training) -> None:
        self.below.check(task, training)

    # --- client half ------------------------------------------------------------------------------------------------

    def client_init(self, task: Task, params: Tree) -> State:
        return {"base": self.below.client_init(task, params)}

    def install(self, c: Client) -> tuple[Tree, State]:
        return self._client(c, self.below.install)

    def decide(self, c: Client) -> tuple[Train, State]:
        return self._client(c, self.below.decide)

    def update(self, c: Client) -> tuple[Tree, State]:
        return self._client(c, self.below.update)

    def upload(self, c: Client) -> tuple[Up, State]:
        return self._client(c, self.below.upload)

    def personal(self, c: Client) -> Tree:
        return self.below.personal(c.within("base"))

    # --- server half ------------------------------------------------------------------------------------------------

    def server_init(self, task: Task, params: Tree) -> State:
        return {"base": self.below.server_init(task, params)}

    def select(self, s: Server) -> tuple[Tensor, State]:
        ids, state = self.below.select(s.within("base"))
        return ids, {**s.state, "base": state}

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        down, state = self.below.give(s.within("base"), ids)
        return down, {**s.state, "base": state}

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        weights, state = self.below.weigh(s.within("base"), ids, up)
        return weights, {**s.state, "base": state}

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        params, state = self.below.aggregate(s.within("base"), ids, up, weights)
        return params, {**s.state, "base": state}

    def sums(self, sent: Tree, up: Up, weights: Tensor | Tree) -> State:
        return self.below.sums(sent, up, weights)

    def step(self, s: Server, sums: State) -> tuple[Tree, State]:
        params, state = self.below.step(s.within("base"), sums)
        return params, {**s.state, "base": state}

    def planned_rounds(self, asked: int) -> int:
        return self.below.planned_rounds(asked)

    def stop(self, s: Server) -> str | None:
        return self.below.stop(s.within("base"))

    # --- shared -----------------------------------------------------------------------------------------------------

    def travels(self, task: Task) -> tuple[str, ...]:
        return self.below.travels(task)

    def shared_names(self, task: Task) -> tuple[str, ...]:
        return self.below.shared_names(task)

    def has_global(self, task: Task) -> bool:
        return self.below.has_global(task)

    def _client(self, c: Client, hook: Callable[[Client], tuple[T, State]]) -> tuple[T, State]:
        result, state = hook(c.within("base"))
        return result, {**c.state, "base": state}


@dataclass(frozen=True)
class Around(Wrapper):
    """A wrapper around a method that is there already; it goes by that method's name."""

    method: Method

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.method.name

    @property
    def below(self) -> Method:
        return self.method
