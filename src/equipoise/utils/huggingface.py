"""Load objects with Hugging Face libraries, with their errors in one sentence."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from equipoise.utils.errors import UsageError, install_hint

Loaded = TypeVar("Loaded")


def import_library(name: str, purpose: str) -> ModuleType:
    """Import a library of the extra `text`.

    Args:
        name: Name of the library.
        purpose: What needs it, for the error.

    Returns:
        The module.

    Raises:
        UsageError: If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{purpose} needs {name}: {install_hint('text')}") from error


def load_pretrained(kind: str, name: str, load: Callable[[str], Loaded]) -> Loaded:
    """Load an object from a folder or from the hub.

    Args:
        kind: Kind of the object, for errors.
        name: Path of a folder, or a name on the hub.
        load: Loads the object from a path or a name.

    Returns:
        The result of `load`.

    Raises:
        UsageError: If it cannot be loaded.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise UsageError(
            f"there is no folder '{name}' for {kind}: "
            "give a folder, or a name on the Hugging Face hub"
        )
    try:
        return load(str(folder) if folder.is_dir() else name)
    except UsageError:
        raise
    except Exception as error:  # whatever the library, the network or the hub may raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        location = (
            "the folder"
            if folder.is_dir()
            else "the hub (there is no such folder here; is there a network?)"
        )
        raise UsageError(f"{kind} '{name}' cannot be loaded from {location}: {reason}") from error
