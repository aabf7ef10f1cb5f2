"""Which options a run has, whose they are, and by which names they are given.

An option's short name is enough where it is unique. Where method and task both have one of that name, it is given as
``method.alpha`` or ``task.alpha``; these full names are always accepted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from equipoise.clock.config import ClockConfig
from equipoise.config.schema import (
    Constraint,
    OptionType,
    constraint_of,
    describe_default,
    option_types,
)
from equipoise.core import Method, Options, TrainingConfig
from equipoise.privacy.config import PrivacyConfig
from equipoise.settings.run_config import RunConfig
from equipoise.tasks import TaskSpec
from equipoise.utils.errors import UsageError, nearest

OWNED = ("task", "method")
"""Owners whose options have full names; those of the others are nobody else's."""


@dataclass(frozen=True)
class Option:
    """One option of a run: where it belongs, its type, default, and what is declared of it."""

    name: str
    owner: str
    kind: OptionType
    default: Any
    rule: Constraint

    @property
    def full(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner in OWNED else self.name

    @property
    def help(self) -> str:
        return f"{self.rule.help} {describe_default(self.default, self.rule)}".lstrip()


OptionTable = Mapping[str, Option]
"""Options by the name under which a run's files keep them: the short one where it is unique, else the full one."""


def options(method: type[Method], task: TaskSpec) -> dict[str, Option]:
    """Every option that a run of this method on this task takes."""
    found = [
        *of_config(RunConfig, "run"),
        *of_config(ClockConfig, "timing"),
        *of_config(TrainingConfig, "training", task.training),
        *of_config(PrivacyConfig, "privacy"),
        *of_config(task.config, "task"),
        *of_config(method, "method"),
    ]
    known: dict[str, Option] = {}
    for item in found:
        same = [other for other in found if other.name == item.name]
        if any(other.owner not in OWNED for other in same) and len(same) > 1:
            raise UsageError(
                f"{same[1].owner} option '{item.name}' is also an option of {same[0].owner}: rename it"
            )
        known[item.name if len(same) == 1 else item.full] = item
    return known


def of_config(config: type, owner: str, defaults: Options | None = None) -> list[Option]:
    """The options of one typed config; ``defaults``: an instance whose values are the defaults here."""
    found = []
    for item in dataclasses.fields(config):
        if item.default is MISSING:
            raise UsageError(f"option '{item.name}' has no default: every option needs one")
        default = getattr(defaults, item.name) if defaults else item.default
        found.append(
            Option(item.name, owner, option_types(config)[item.name], default, constraint_of(item))
        )
    return found


def has_option(known: OptionTable, name: str) -> bool:
    """Whether there is an option with this short or full name."""
    return any(name in (item.name, item.full) for item in known.values())


def find(known: OptionTable, name: str) -> str:
    """The key in ``known`` of an option with this short or full name."""
    if name in known:
        return name
    keys = [key for key, item in known.items() if name in (item.name, item.full)]
    if len(keys) == 1:
        return keys[0]
    if keys:
        raise UsageError(
            f"option '{name}' is one of the method and one of the task: say {' or '.join(keys)}"
        )
    raise UsageError(f"unknown option '{name}'{nearest(name, known)}")


def resolve_names(known: OptionTable, given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, by the keys of ``known``; all that is wrong with the names is told at once."""
    found: dict[str, Any] = {}
    wrong: list[str] = []
    for name, value in given.items():
        try:
            key = find(known, name)
            if key in found:
                raise UsageError(f"option '{name}' is given twice, under two names")
            found[key] = value
        except UsageError as error:
            wrong.append(str(error))
    if wrong:
        raise UsageError("; ".join(wrong))
    return found
