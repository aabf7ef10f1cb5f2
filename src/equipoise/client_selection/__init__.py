"""Client selection policies, independent of the training method.

`policies.py` holds the published policies and `learned.py` a contextual bandit. They are found by
importing the files of this package.
"""

from __future__ import annotations

import inspect
from types import ModuleType

from equipoise.core import SelectionPolicy
from equipoise.utils.discovery import all_declared
from equipoise.utils.errors import UsageError, did_you_mean
from equipoise.utils.plugins import class_path, load_class


def all_selections() -> dict[str, type[SelectionPolicy]]:
    """Return every policy of this package by name."""
    return all_declared((__name__,), _selections_in)


def find_selection(name: object) -> type[SelectionPolicy]:
    """Find a selection policy.

    Args:
        name: A policy's name, a class, or a user's class as `module:Class` or
            `path/to/file.py:Class`.

    Returns:
        The policy's class. A user's class without a `name` gets its class name in lower case.

    Raises:
        UsageError: If there is no such policy; the message names the nearest one.
    """
    policy = name
    if isinstance(name, str):
        policy = _user_policy(name) if ":" in name else _builtin_policy(name)
    if not (inspect.isclass(policy) and issubclass(policy, SelectionPolicy)):
        raise UsageError(
            f"selection is {policy!r}: give a name, or a subclass of equipoise.SelectionPolicy"
        )
    if not hasattr(policy, "name"):
        policy.name = policy.__name__.lower()
    return policy


def recorded_name(selection: type[SelectionPolicy]) -> str:
    """Return the name of a policy in a run's config."""
    if selection.__module__.startswith(f"{__name__}."):
        return selection.name
    return class_path(selection)


def _selections_in(module: ModuleType) -> dict[str, type[SelectionPolicy]]:
    """Return the policies that a module defines, by name."""
    return {
        item.name: item
        for _, item in inspect.getmembers(module, inspect.isclass)
        if issubclass(item, SelectionPolicy) and item.__module__ == module.__name__
    }


def _builtin_policy(name: str) -> type[SelectionPolicy]:
    """Return a policy of this package."""
    known = all_selections()
    if name not in known:
        raise UsageError(
            f"selection is '{name}': must be one of {', '.join(known)}, or your own as "
            f"file.py:Class{did_you_mean(name, known)}"
        )
    return known[name]


def _user_policy(name: str) -> object:
    """Return what a user's `module:Class` names."""
    module, _, class_name = name.rpartition(":")
    policy = load_class(name, "selection")
    if policy is None:
        raise UsageError(f"'{module}' has no class '{class_name}' that is a SelectionPolicy")
    return policy
