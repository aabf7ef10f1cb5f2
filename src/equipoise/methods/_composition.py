"""A method over another that the user names: it takes some decisions itself and leaves the others to its base."""

from __future__ import annotations

from copy import copy
from dataclasses import Field, dataclass, fields
from functools import cached_property
from typing import Any, Self

from equipoise.config.parsing import parse
from equipoise.config.schema import constraint_of, option_types
from equipoise.core import DelegatingMethod, Method, Task, TrainingConfig, option
from equipoise.methods import find_method
from equipoise.utils.errors import UsageError, nearest


@dataclass(frozen=True)
class ComposedMethod(DelegatingMethod):
    """A wrapper whose inner method is an option."""

    base: str = option("fedavg", "method whose other decisions are kept")
    base_options: str = option("", "options of that method, as 'name=value name=value'")

    @cached_property
    def inner(self) -> Method:
        kind, values = find_method(self.base), {}
        known: dict[str, Field[Any]] = {item.name: item for item in fields(kind)}
        for text in self.base_options.split():
            name, _, value = text.partition("=")
            name = name.replace("-", "_")
            if name not in known:
                raise UsageError(
                    f"unknown option '{name}' of '{self.base}' in base_options{nearest(name, known)}"
                )
            values[name] = parse(name, value, option_types(kind)[name], constraint_of(known[name]))
        return kind(**values)

    def at(self, round: int, rounds: int) -> Self:
        here, below = super().at(round, rounds), self.inner.at(round, rounds)
        if here is self and below is self.inner:
            return self
        here = copy(here)
        vars(here)["inner"] = below
        return here

    def check(self, task: Task, training: TrainingConfig) -> None:
        if "configure_training" in self.inner.overridden_hooks:
            raise UsageError(
                f"{self.name} cannot sit on '{self.base}': both would decide how clients train; choose another --base"
            )
        self.inner.check(task, training)

    def needs_free_weights(self, task: Task) -> None:
        """Refuse a base whose aggregate is no mean of whole models under weights that are free to choose."""
        if not self.inner.has_global(task):
            raise UsageError(
                f"{self.name} weighs whole models, but '{self.base}' keeps a part of them at the clients: "
                "choose a --base that shares all, or --controls alpha,eta"
            )
        if "aggregation_weights" in self.inner.overridden_hooks:
            raise UsageError(
                f"{self.name} would choose the weights of the mean, but '{self.base}' is sound under its own alone: "
                "choose another --base, or --controls alpha,eta"
            )
