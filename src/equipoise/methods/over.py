"""A method over another that the user names: it takes some decisions itself and leaves the others to its base."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from equipoise.contract import Method, Task, Training, Wrapper, option
from equipoise.core.errors import UsageError, nearest
from equipoise.methods import find_method


@dataclass(frozen=True)
class Over(Wrapper):
    """A wrapper whose inner method is an option."""

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

    def check(self, task: Task, training: Training) -> None:
        if "decide" in self.below.decides:
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
        if "weigh" in self.below.decides:
            raise UsageError(
                f"{self.name} would choose the weights of the mean, but '{self.base}' is sound under its own alone: "
                "choose another --base, or --adapt alpha,eta"
            )
