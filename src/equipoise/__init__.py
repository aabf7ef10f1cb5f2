"""Federated learning among heterogeneous clients.

The public names are in ``__all__`` and in docs/reference/python.md. Importing this package is
quick: a name, and PyTorch with it, is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from equipoise.utils.errors import UsageError

if TYPE_CHECKING:  # for editors and type checkers; a test compares it with __all__
    from equipoise import methods
    from equipoise.api import callbacks
    from equipoise.api.inputs import private, robust, secure
    from equipoise.api.pretrained import Pretrained, load
    from equipoise.api.results import Chosen, Comparison, Newcomer, Run, compare
    from equipoise.api.run import open, open_choice, run
    from equipoise.api.task import Task
    from equipoise.config.schema import constant, cosine, linear, steps
    from equipoise.core import (
        Capabilities,
        Client,
        ClientUpdate,
        DelegatingMethod,
        LocalHParams,
        Method,
        Params,
        Pool,
        ProximalTerm,
        Scheduled,
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
    "Chosen",
    "Client",
    "ClientUpdate",
    "Comparison",
    "DelegatingMethod",
    "LocalHParams",
    "Method",
    "Newcomer",
    "Params",
    "Pool",
    "Pretrained",
    "ProximalTerm",
    "Run",
    "Scheduled",
    "SelectionPolicy",
    "Server",
    "ServerMessage",
    "State",
    "Task",
    "TrainingConfig",
    "UsageError",
    "callbacks",
    "compare",
    "constant",
    "cosine",
    "equal_weights",
    "linear",
    "load",
    "merge_sent_blocks",
    "methods",
    "open",
    "open_choice",
    "option",
    "private",
    "robust",
    "run",
    "secure",
    "steps",
    "weighted_mean",
]
__version__ = "0.1.0"

_MODULES = {
    "equipoise.api.results": ("Chosen", "Comparison", "Newcomer", "Run", "compare"),
    "equipoise.api.pretrained": ("Pretrained", "load"),
    "equipoise.api.inputs": ("private", "robust", "secure"),
    "equipoise.api.run": ("open", "open_choice", "run"),
    "equipoise.api.task": ("Task",),
    "equipoise.config.schema": ("constant", "cosine", "linear", "steps"),
}
"""Modules of public names; all other names are in ``equipoise.core``."""
_PUBLIC_MODULES = {"callbacks": "equipoise.api.callbacks", "methods": "equipoise.methods"}
"""Public names that are modules themselves."""


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "__version__"]


if not TYPE_CHECKING:  # type checkers use the imports above

    def __getattr__(name: str) -> Any:
        """Load a public name when it is first used."""
        if name not in __all__:
            raise AttributeError(f"module 'equipoise' has no attribute '{name}'")
        if name in _PUBLIC_MODULES:
            return importlib.import_module(_PUBLIC_MODULES[name])
        modules = [module for module, names in _MODULES.items() if name in names]
        module = importlib.import_module(modules[0] if modules else "equipoise.core")
        globals()[name] = getattr(module, name)
        return globals()[name]
