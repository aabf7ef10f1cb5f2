"""Locate a published data set: a local folder in its publishers' format first, else the hub.

Decoded arrays are cached as memory-mapped files: decoded once, then opened in milliseconds.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.utils import io
from equipoise.utils.errors import UsageError, install_hint

Arrays = dict[str, NDArray[Any]]

INDEX_FILE = "arrays.json"  # lists the arrays of one data set
CACHE_FORMAT = 2  # raise it when the meaning of the cached arrays changes

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
            files = source.find(folder) if folder.is_dir() else None
            if files is not None:
                return load_cached(source.name, files.files, files.read)
    return load_cached(f"{source.name}-hub", [], lambda: _download(source, root))


def import_extra(module: str, purpose: str) -> ModuleType:
    """Import a module of the optional extra ``data``.

    Args:
        module: Name of the module.
        purpose: What needs it, for the error message.

    Returns:
        The module.

    Raises:
        UsageError: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{purpose} needs {module.partition('.')[0]}: {install_hint('data')}"
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


# ------------------------------------------------------------------ cache of decoded arrays


def cache_folder() -> Path:
    """Return ``$EQUIPOISE_CACHE``, or ``~/.cache/equipoise`` if it is not set."""
    return Path(os.environ.get("EQUIPOISE_CACHE") or Path.home() / ".cache" / "equipoise")


def load_cached(name: str, source_files: Sequence[Path], decode: Callable[[], Arrays]) -> Arrays:
    """Return the arrays that ``decode`` makes, from the cache if possible.

    Args:
        name: Name of the data set.
        source_files: Files that the arrays are decoded from. The cache entry is valid until one of
            them changes its path, size or modification time.
        decode: Decodes the arrays.

    Returns:
        The arrays by name, memory-mapped where they are cached. If the cache cannot be written, a
        warning is printed and the decoded arrays are returned.
    """
    folder = cache_folder() / f"{name}-{_fingerprint(source_files)}"
    arrays = _open(folder)
    if arrays is not None:
        return arrays
    arrays = decode()
    try:
        _write(folder, arrays)
    except OSError as error:
        print(
            f"equipoise: the decoded data cannot be kept in '{folder.parent}' ({error})",
            file=sys.stderr,
        )
        return arrays
    return _open(folder) or arrays


def _fingerprint(files: Sequence[Path]) -> str:
    """Return a key that changes with the path, size or modification time of a file."""
    marks = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr((CACHE_FORMAT, sorted(marks))).encode()).hexdigest()[:16]


def _open(folder: Path) -> Arrays | None:
    """Map the arrays of a folder; remove the folder and return ``None`` if it is damaged.

    Arrays are mapped copy-on-write, because torch wants writable memory.
    """
    if not folder.is_dir():
        return None
    try:
        names = json.loads((folder / INDEX_FILE).read_text())
        return {
            name: np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False)
            for name in names
        }
    except (OSError, ValueError):
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _write(folder: Path, arrays: Arrays) -> None:
    """Write a folder atomically; if another process was faster, its copy stays."""
    io.make_folder(folder.parent)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, array in arrays.items():
            save = partial(np.save, arr=array, allow_pickle=False)
            io.write_with(temporary / f"{name}.npy", save)
        io.write_text(temporary / INDEX_FILE, json.dumps(sorted(arrays)))
        try:
            io.DISK.rename(temporary, folder)
            io.sync(folder.parent)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
