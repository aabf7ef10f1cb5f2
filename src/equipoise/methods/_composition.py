"""Base class of methods that decide some hooks and leave the others to a method of choice."""

from __future__ import annotations

from copy import copy
from dataclasses import Field, dataclass, fields
from functools import cached_property
from typing import Any, Self

from equipoise.config.schema import constraint_of, option_types, parse
from equipoise.core import DelegatingMethod, Method, Task, TrainingConfig, option
from equipoise.methods import find_method
from equipoise.utils.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class ComposedMethod(DelegatingMethod):
    """A wrapper whose inner method is an option."""

    base: str = option("fedavg", "method that takes all other decisions")
    base_options: str = option("", "options of that method, as 'name=value name=value'")

    @property
    def given_base(self) -> str:
        """Name of the base method."""
        return self.base

    @property
    def given_base_options(self) -> str:
        """Options with which the base is built."""
        return self.base_options

    @cached_property
    def inner(self) -> Method:
        """Build the base method with its options.

        Raises:
            UsageError: If the base or one of its options is unknown or invalid.
        """
        method = find_method(self.given_base)
        known: dict[str, Field[Any]] = {item.name: item for item in fields(method)}
        values = {}
        for text in self.given_base_options.split():
            name, _, value = text.partition("=")
            name = name.replace("-", "_")
            if name not in known:
                raise UsageError(
                    f"unknown option '{name}' of '{self.given_base}' in base_options"
                    f"{did_you_mean(name, known)}"
                )
            constraint = constraint_of(known[name])
            values[name] = parse(name, value, option_types(method)[name], constraint)
        return method(**values)

    def at(self, round: int, rounds: int) -> Self:
        """Return the method with all schedules, also those of the base, at their round's values.

        Args:
            round: The round, from 1.
            rounds: The number of rounds of the run.
        """
        method = super().at(round, rounds)
        inner = self.inner.at(round, rounds)
        if method is self and inner is self.inner:
            return self
        method = copy(method)
        vars(method)["inner"] = inner
        return method

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Refuse a base that decides how clients train, since the subclass does."""
        if "configure_training" in self.inner.overridden_hooks:
            raise UsageError(
                f"{self.name} cannot be combined with '{self.given_base}': both would decide how "
                "clients train; choose another --base"
            )
        self.inner.check(task, training)

    def require_free_weights(self, task: Task) -> None:
        """Refuse a base whose new model is not a mean of whole models with arbitrary weights.

        Raises:
            UsageError: If the base shares only some blocks, or needs its own weights.
        """
        if not self.inner.has_global(task):
            raise UsageError(
                f"{self.name} weighs whole models, but '{self.given_base}' keeps a part of them "
                "at the clients: choose a --base that shares all, or --controls alpha,eta"
            )
        if "aggregation_weights" in self.inner.overridden_hooks:
            raise UsageError(
                f"{self.name} would choose the weights of the mean, but '{self.given_base}' is "
                "only sound under its own: choose another --base, or --controls alpha,eta"
            )
