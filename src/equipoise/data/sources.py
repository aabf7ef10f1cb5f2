"""Locate a published data set: a local folder in its publishers' format first, else the hub."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from equipoise.data.cache import Arrays, cached
from equipoise.utils.errors import UsageError

HubData = Mapping[str, Any]
"""The result of ``datasets.load_dataset``: its splits by name."""


@dataclass(frozen=True)
class DatasetFiles:
    """A data set on disk.

    Attributes:
        files: Files (or folders) whose change invalidates the cache.
        read: Decodes the arrays.
    """

    files: list[Path]
    read: Callable[[], Arrays]


@dataclass(frozen=True)
class DatasetSource:
    """How a named data set is found, decoded or downloaded.

    Attributes:
        name: Name of the data set, also of its cache entry.
        find: Looks for the data set in one folder.
        folders: Subfolders of ``--data`` that are searched, after that folder itself.
        advice: Tells the user what to download and where to put it.
        hub: Name on the Hugging Face hub.
        from_hub: Decodes the result of ``datasets.load_dataset``.
    """

    name: str
    find: Callable[[Path], DatasetFiles | None]
    folders: tuple[str, ...]
    advice: str
    hub: str = ""
    from_hub: Callable[[HubData], Arrays] | None = None


def load_dataset(source: DatasetSource, data: str) -> Arrays:
    """Load the decoded arrays of a data set, from the cache if nothing changed.

    Args:
        source: The data set.
        data: Folder given with ``--data``; if empty, ``$EQUIPOISE_DATA`` is used.

    Returns:
        Arrays by name: ``x``, ``y``, ``test_x``, ``test_y`` for images.

    Raises:
        UsageError: If the data set is neither on disk nor on the hub.
    """
    root = _root_folder(data)
    if root is not None:
        for folder in (root, *(root / name for name in source.folders)):
            found = source.find(folder) if folder.is_dir() else None
            if found is not None:
                return cached(source.name, found.files, found.read)
    return cached(f"{source.name}-hub", [], lambda: _download(source, root))


def import_extra(module: str, purpose: str) -> ModuleType:
    """Import a module of the optional extra ``data``.

    Args:
        module: Name of the module.
        purpose: What needs it, for the error message.

    Raises:
        UsageError: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{purpose} needs {module.partition('.')[0]}: pip install 'equipoise[data]' "
            "(in a clone: pip install -e '.[data]')"
        ) from error


def _root_folder(data: str) -> Path | None:
    """Return the data folder, or ``None`` if none is configured."""
    configured = data or os.environ.get("EQUIPOISE_DATA", "")
    if not configured:
        return None
    root = Path(configured).expanduser()
    if not root.is_dir():
        option = "--data" if data else "EQUIPOISE_DATA"
        raise UsageError(f"there is no data folder '{configured}': check {option}")
    return root


def _download(source: DatasetSource, root: Path | None) -> Arrays:
    """Fetch and decode a data set from the Hugging Face hub."""
    where = f"is not in '{root}'" if root else "has no folder (--data or EQUIPOISE_DATA)"
    advice = f"data set '{source.name}' {where}: {source.advice}"
    if source.from_hub is None:
        raise UsageError(advice)
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise UsageError(
            f"{advice}; or pip install datasets to fetch '{source.hub}' from the hub"
        ) from error
    try:
        # The library shows progress and verifies checksums by itself.
        fetched = datasets.load_dataset(source.hub)
    except Exception as error:  # the network and the hub may raise anything
        text = str(error).strip()
        reason = text.splitlines()[0] if text else type(error).__name__
        raise UsageError(
            f"{advice}; fetching '{source.hub}' from the hub failed: {reason}"
        ) from error
    return source.from_hub(fetched)
