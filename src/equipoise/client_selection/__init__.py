"""Policies of decision 0, one file each, found by its name: ``loss`` is the policy of ``loss.py``."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from equipoise.core import SelectionPolicy
from equipoise.utils.errors import UsageError, nearest
from equipoise.utils.plugins import class_named, recorded


def all_selections() -> dict[str, type[SelectionPolicy]]:
    """Every policy that ships, by name."""
    found: dict[str, type[SelectionPolicy]] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for _, item in inspect.getmembers(module, inspect.isclass):
            if issubclass(item, SelectionPolicy) and item.__module__ == module.__name__:
                found[item.name] = item
    return dict(sorted(found.items()))


def find_selection(wanted: object) -> type[SelectionPolicy]:
    """A policy by name, a class, or the user's own as ``module:Class`` or ``path/to/file.py:Class``."""
    if isinstance(wanted, str):
        if ":" in wanted:
            where, _, class_name = wanted.rpartition(":")
            wanted = class_named(wanted, "select")
            if wanted is None:
                raise UsageError(f"'{where}' has no class '{class_name}' that is a Selection")
        elif wanted in (known := all_selections()):
            return known[wanted]
        else:
            raise UsageError(
                f"select is '{wanted}': must be one of {', '.join(known)}, or your own as file.py:Class"
                f"{nearest(wanted, known)}"
            )
    if not (inspect.isclass(wanted) and issubclass(wanted, SelectionPolicy)):
        raise UsageError(f"select is {wanted!r}: give a name, or a subclass of equipoise.Selection")
    if not hasattr(wanted, "name"):
        wanted.name = wanted.__name__.lower()
    return wanted


def recorded_name(selection: type[SelectionPolicy]) -> str:
    """How a run's config names it."""
    return (
        selection.name if selection.__module__.startswith(f"{__name__}.") else recorded(selection)
    )
