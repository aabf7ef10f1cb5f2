"""What the files of a package declare, by name: methods, tasks, policies of selection.

A new one needs a new file and nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TypeVar

from equipoise.utils.errors import UsageError, did_you_mean

T = TypeVar("T")
DeclaredIn = Callable[[ModuleType], dict[str, T]]
"""Returns what a module declares, by name."""


def all_declared(packages: Sequence[str], declared_in: DeclaredIn[T]) -> dict[str, T]:
    """Import all files of packages, and return what they declare in the order of the names.

    Args:
        packages: Names of the packages.
        declared_in: Returns what one module declares.
    """
    declared: dict[str, T] = {}
    for package in packages:
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
            declared |= declared_in(importlib.import_module(f"{package}.{info.name}"))
    return dict(sorted(declared.items()))


def find_declared(kind: str, name: str, packages: Sequence[str], declared_in: DeclaredIn[T]) -> T:
    """Find what a file of packages declares under a name.

    Args:
        kind: What is looked for (`method`, `task`), for errors.
        name: Its name.
        packages: Names of the packages.
        declared_in: Returns what one module declares.

    Returns:
        What has this name.

    Raises:
        UsageError: If nothing has; the message names the nearest one.
    """
    # Most have a file of their own name: importing it alone saves time at the start.
    file = name.replace("-", "_")
    for package in packages:
        if file.isidentifier() and importlib.util.find_spec(f"{package}.{file}") is not None:
            found = declared_in(importlib.import_module(f"{package}.{file}")).get(name)
            if found is not None:
                return found
    known = all_declared(packages, declared_in)
    if name not in known:
        raise UsageError(
            f"unknown {kind} '{name}'{did_you_mean(name, known)}; see 'equipoise list {kind}s'"
        )
    return known[name]
