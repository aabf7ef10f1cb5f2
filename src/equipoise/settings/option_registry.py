"""Registry of the options of a run: owners, types, defaults and names.

The short name of an option suffices if it is unique. If method and task both have an option of that
name, it is given as ``method.alpha`` or ``task.alpha``; these full names are always accepted.
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
from equipoise.utils.errors import UsageError, did_you_mean

SYNONYMS = {
    "learning_rate": "lr",
    "eta": "lr",
    "num_rounds": "rounds",
    "n_rounds": "rounds",
    "local_epochs": "epochs",
    "num_epochs": "epochs",
    "batchsize": "batch_size",
    "num_clients": "clients",
    "n_clients": "clients",
    "random_state": "seed",
    "fraction_fit": "participation",
}
"""Names that other libraries use, for error messages."""
OWNERS_WITH_FULL_NAMES = ("task", "method")
"""Owners whose options may share a short name; those of other owners must be unique."""


@dataclass(frozen=True)
class Option:
    """One option of a run: name, owner, type, default and constraint."""

    name: str
    owner: str
    kind: OptionType
    default: Any
    rule: Constraint

    @property
    def full(self) -> str:
        """Name with the owner, such as ``method.alpha``."""
        return f"{self.owner}.{self.name}" if self.owner in OWNERS_WITH_FULL_NAMES else self.name

    @property
    def help(self) -> str:
        """Text for ``--help``: description, bounds and default."""
        return f"{self.rule.help} {describe_default(self.default, self.rule)}".lstrip()


OptionTable = Mapping[str, Option]
"""Options by name: the short one if it is unique, else the full one."""


def options(method: type[Method], task: TaskSpec) -> dict[str, Option]:
    """Return all options of a run.

    Args:
        method: Class of the method.
        task: Specification of the task.

    Returns:
        Options by name.

    Raises:
        UsageError: If an option of the method or task has the name of an option of the run.
    """
    all_options = [
        *of_config(RunConfig, "run"),
        *of_config(ClockConfig, "timing"),
        *of_config(TrainingConfig, "training", task.training),
        *of_config(PrivacyConfig, "privacy"),
        *of_config(task.config, "task"),
        *of_config(method, "method"),
    ]
    known: dict[str, Option] = {}
    for item in all_options:
        same = [other for other in all_options if other.name == item.name]
        if any(other.owner not in OWNERS_WITH_FULL_NAMES for other in same) and len(same) > 1:
            raise UsageError(
                f"{same[1].owner} option '{item.name}' is also an option of {same[0].owner}: "
                "rename it"
            )
        known[item.name if len(same) == 1 else item.full] = item
    return known


def of_config(config: type, owner: str, defaults: Options | None = None) -> list[Option]:
    """Return the options of one typed config.

    Args:
        config: Class of the config.
        owner: Owner of the options.
        defaults: Instance whose values are the defaults; those of the class if None.

    Returns:
        The options, in the order of the fields.

    Raises:
        UsageError: If an option has no default.
    """
    options_of_class = []
    for item in dataclasses.fields(config):
        if item.default is MISSING:
            raise UsageError(f"option '{item.name}' has no default: every option needs one")
        default = getattr(defaults, item.name) if defaults else item.default
        options_of_class.append(
            Option(item.name, owner, option_types(config)[item.name], default, constraint_of(item))
        )
    return options_of_class


def has_option(table: OptionTable, name: str) -> bool:
    """Return whether there is an option with this short or full name."""
    return any(name in (item.name, item.full) for item in table.values())


def find(table: OptionTable, name: str) -> str:
    """Find the key of an option.

    Args:
        table: All options.
        name: Short or full name.

    Returns:
        The key in ``table``.

    Raises:
        UsageError: If the name is unknown, or method and task both have it.
    """
    if name in table:
        return name
    keys = [key for key, item in table.items() if name in (item.name, item.full)]
    if len(keys) == 1:
        return keys[0]
    if keys:
        raise UsageError(
            f"option '{name}' is one of the method and one of the task: say {' or '.join(keys)}"
        )
    hint = f" (did you mean '{SYNONYMS[name]}'?)" if name in SYNONYMS else did_you_mean(name, table)
    raise UsageError(f"unknown option '{name}'{hint}")


def resolve_names(table: OptionTable, given: Mapping[str, Any]) -> dict[str, Any]:
    """Replace names of options by their keys.

    Args:
        table: All options.
        given: Values by short or full name.

    Returns:
        Values by key.

    Raises:
        UsageError: If names are unknown, ambiguous or given twice; all are reported at once.
    """
    resolved: dict[str, Any] = {}
    errors: list[str] = []
    for name, value in given.items():
        try:
            key = find(table, name)
            if key in resolved:
                raise UsageError(f"option '{name}' is given twice, under two names")
            resolved[key] = value
        except UsageError as error:
            errors.append(str(error))
    if errors:
        raise UsageError("; ".join(errors))
    return resolved
