"""A method over another: it takes some decisions itself and leaves the others to its base."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeVar

from torch import Tensor

from equipoise.contract import Client, Down, Method, Server, State, Task, Training, Tree, Up, option
from equipoise.core.errors import UsageError, nearest
from equipoise.methods import find_method

T = TypeVar("T")


@dataclass(frozen=True)
class Over(Method):
    """Every hook is the base's; its state lies under ``base``. Subclasses replace the hooks that they decide."""

    base: str = option("fedavg", "method whose other decisions are kept")
    base_options: str = option("", "options of that method, as 'name=value name=value'")

    @cached_property
    def below(self) -> Method:
        kind, values = find_method(self.base), {}
        known = {item.name: item for item in fields(kind)}
        for text in self.base_options.split():
            name, _, value = text.partition("=")
            name = name.replace("-", "_")
            if name not in known:
                raise UsageError(f"unknown option '{name}' of '{self.base}' in base_options{nearest(name, known)}")
            wanted: Any = type(known[name].default)
            try:
                values[name] = value.lower() == "true" if wanted is bool else wanted(value)
            except ValueError as error:
                raise UsageError(f"base_options has {name}={value}: must be a number") from error
        return kind(**values)

    @property
    def keeps_model(self) -> bool:  # type: ignore[override]
        return self.below.keeps_model

    def check(self, task: Task, training: Training) -> None:
        if isinstance(self.below, Over) or type(self.below).decide is not Method.decide:
            raise UsageError(
                f"{self.name} cannot sit on '{self.base}': both would decide how clients train; choose another --base"
            )
        self.below.check(task, training)

    def needs_free_weights(self, task: Task) -> None:
        """Refuse a base whose aggregate is no mean of whole models under weights that are free to choose."""
        if not self.below.has_global(task):
            raise UsageError(
                f"{self.name} weighs whole models, but '{self.base}' keeps a part of them at the clients: "
                "choose a --base that shares all, or --adapt alpha,eta"
            )
        if type(self.below).weigh is not Method.weigh:
            raise UsageError(
                f"{self.name} would choose the weights of the mean, but '{self.base}' is sound under its own alone: "
                "choose another --base, or --adapt alpha,eta"
            )

    def client_init(self, task: Task, params: Tree) -> State:
        return {"base": self.below.client_init(task, params)}

    def install(self, c: Client) -> tuple[Tree, State]:
        return self._below(c, self.below.install)

    def update(self, c: Client) -> tuple[Tree, State]:
        return self._below(c, self.below.update)

    def upload(self, c: Client) -> tuple[Up, State]:
        return self._below(c, self.below.upload)

    def personal(self, c: Client) -> Tree:
        return self.below.personal(c.within("base"))

    def server_init(self, task: Task, params: Tree) -> State:
        return {"base": self.below.server_init(task, params)}

    def give(self, s: Server, ids: Tensor) -> tuple[Down, State]:
        down, state = self.below.give(s.within("base"), ids)
        return down, {**s.state, "base": state}

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        weights, state = self.below.weigh(s.within("base"), ids, up)
        return weights, {**s.state, "base": state}

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        params, state = self.below.aggregate(s.within("base"), ids, up, weights)
        return params, {**s.state, "base": state}

    def stop(self, s: Server) -> str | None:
        return self.below.stop(s.within("base"))

    def shared_names(self, task: Task) -> tuple[str, ...]:
        return self.below.shared_names(task)

    def has_global(self, task: Task) -> bool:
        return self.below.has_global(task)

    def _below(self, c: Client, hook: Callable[[Client], tuple[T, State]]) -> tuple[T, State]:
        result, state = hook(c.within("base"))
        return result, {**c.state, "base": state}
