"""Cache of decoded data sets as memory-mapped arrays: decoded once, then opened in milliseconds."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.utils import io

Arrays = dict[str, NDArray[Any]]

INDEX_FILE = "arrays.json"  # lists the arrays of one data set
CACHE_FORMAT = 2  # raise it when the meaning of the cached arrays changes


def cache_folder() -> Path:
    """Return ``$EQUIPOISE_CACHE``, or ``~/.cache/equipoise`` if it is not set."""
    return Path(os.environ.get("EQUIPOISE_CACHE") or Path.home() / ".cache" / "equipoise")


def cached(name: str, source_files: Sequence[Path], decode: Callable[[], Arrays]) -> Arrays:
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
