"""Decoded data sets, kept as memory-mapped arrays: decoded once, opened in milliseconds afterwards."""

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
NAMES = "arrays.json"  # which arrays belong together
FORMAT = 2  # raise it when what is cached changes its meaning


def cache_folder() -> Path:
    """``$EQUIPOISE_CACHE``, else ``~/.cache/equipoise``."""
    return Path(os.environ.get("EQUIPOISE_CACHE") or Path.home() / ".cache" / "equipoise")


def cached(name: str, made_from: Sequence[Path], make: Callable[[], Arrays]) -> Arrays:
    """What ``make`` gives, kept until one of the files ``made_from`` changes its place, size or time."""
    folder = cache_folder() / f"{name}-{_fingerprint(made_from)}"
    kept = _open(folder)
    if kept is not None:
        return kept
    arrays = make()
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
    marks = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr((FORMAT, sorted(marks))).encode()).hexdigest()[:16]


def _open(folder: Path) -> Arrays | None:
    """Arrays mapped copy-on-write (torch wants writable memory); ``None`` if absent, damaged or half swept away."""
    if not folder.is_dir():
        return None
    try:
        names = json.loads((folder / NAMES).read_text())
        return {
            name: np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False)
            for name in names
        }
    except (OSError, ValueError):
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _write(folder: Path, arrays: Arrays) -> None:
    """The folder appears whole or not at all; if another process was faster, its copy stays."""
    io.make_folder(folder.parent)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, array in arrays.items():
            io.write_with(
                temporary / f"{name}.npy", partial(np.save, arr=array, allow_pickle=False)
            )
        io.write_text(temporary / NAMES, json.dumps(sorted(arrays)))
        try:
            io.DISK.rename(temporary, folder)
            io.sync(folder.parent)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
