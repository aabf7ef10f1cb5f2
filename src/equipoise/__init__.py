"""Federated learning among clients that differ: one round, six decisions, each a constant, a schedule or an agent.

All that is public from Python stands in ``__all__`` and in docs/reference.md. Importing this package is quick: a name
is loaded, and PyTorch with it, when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from equipoise.utils.errors import UsageError

if (
    TYPE_CHECKING
):  # what editors and type checkers complete from; a test compares it with the table below
    from equipoise import methods
    from equipoise.api.inputs import private, robust, secure
    from equipoise.api.results import Comparison, Run, compare
    from equipoise.api.run import open, run
    from equipoise.api.task import Task
    from equipoise.config.schedules import constant, cosine, linear, steps
    from equipoise.core import (
        Capabilities,
        Client,
        ClientUpdate,
        LocalHParams,
        Method,
        Params,
        Pool,
        ProximalTerm,
        SelectionPolicy,
        Server,
        ServerMessage,
        State,
        TrainingConfig,
        equal_weights,
        merge_sent_blocks,
        option,
        weighted_mean,
    )

__all__ = [
    "Capabilities",
    "Client",
    "ClientUpdate",
    "Comparison",
    "LocalHParams",
    "Method",
    "Params",
    "Pool",
    "ProximalTerm",
    "Run",
    "SelectionPolicy",
    "Server",
    "ServerMessage",
    "State",
    "Task",
    "TrainingConfig",
    "UsageError",
    "compare",
    "constant",
    "cosine",
    "equal_weights",
    "linear",
    "merge_sent_blocks",
    "methods",
    "open",
    "option",
    "private",
    "robust",
    "run",
    "secure",
    "steps",
    "weighted_mean",
]
__version__ = "0.1.0"

_HOMES = {
    "equipoise.api.results": ("Comparison", "Run", "compare"),
    "equipoise.api.inputs": ("private", "robust", "secure"),
    "equipoise.api.run": ("open", "run"),
    "equipoise.api.task": ("Task",),
    "equipoise.config.schedules": ("constant", "cosine", "linear", "steps"),
}
"""Where public names live; all others are words of the contract."""


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


if (
    not TYPE_CHECKING
):  # a type checker shall see the imports above, not a function that gives anything

    def __getattr__(name: str) -> Any:
        """A public name, loaded when it is first asked for."""
        if name not in __all__:
            raise AttributeError(f"module 'equipoise' has no attribute '{name}'")
        if name == "methods":
            return importlib.import_module("equipoise.methods")
        home = next((home for home, names in _HOMES.items() if name in names), "equipoise.core")
        found = globals()[name] = getattr(importlib.import_module(home), name)
        return found
