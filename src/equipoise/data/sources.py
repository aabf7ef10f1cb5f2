"""Where a data set comes from: a local folder in its publishers' format first, else the hub."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from equipoise.data.cache import Arrays, cached
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class DatasetFiles:
    """A data set on disk: the files that stand for its content, and how to decode it."""

    files: list[Path]
    read: Callable[[], Arrays]


@dataclass(frozen=True)
class DatasetSource:
    """How a named data set is found, decoded, or fetched."""

    name: str
    find: Callable[[Path], DatasetFiles | None]
    """Looks in one folder."""
    folders: tuple[str, ...]
    """Folders below ``--data`` in which it may lie, beside that folder itself."""
    advice: str
    """What to download and how to name it."""
    hub: str = ""
    """Its name on the Hugging Face hub."""
    from_hub: Callable[[Any], Arrays] | None = None
    """Decodes what ``datasets.load_dataset`` gives."""


def load_dataset(source: DatasetSource, data: str) -> Arrays:
    """Decoded arrays, from the cache if nothing changed. ``data`` is the folder given, or empty."""
    root = _root(data)
    if root is not None:
        for folder in (root, *(root / name for name in source.folders)):
            found = source.find(folder) if folder.is_dir() else None
            if found is not None:
                return cached(source.name, found.files, found.read)
    return cached(f"{source.name}-hub", [], lambda: _fetch(source, root))


def import_extra(module: str, what: str) -> ModuleType:
    """A module of the extra ``data``."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{what} needs {module.partition('.')[0]}: pip install 'equipoise[data]'"
        ) from error


def _root(data: str) -> Path | None:
    given = data or os.environ.get("EQUIPOISE_DATA", "")
    if not given:
        return None
    root = Path(given).expanduser()
    if not root.is_dir():
        raise UsageError(
            f"there is no data folder '{given}': check {'--data' if data else 'EQUIPOISE_DATA'}"
        )
    return root


def _fetch(source: DatasetSource, root: Path | None) -> Arrays:
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
        fetched = datasets.load_dataset(
            source.hub
        )  # shows progress and verifies checksums by itself
    except Exception as error:  # whatever the network or the hub may raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(
            f"{advice}; fetching '{source.hub}' from the hub failed: {reason}"
        ) from error
    return source.from_hub(fetched)
