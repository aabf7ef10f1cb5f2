"""User classes, named as `module:Class` or `path/to/file.py:Class`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

from equipoise.utils.errors import PYTHON_OBJECT, RESUME_HINT, UsageError

PACKAGE = Path(__file__).resolve().parents[1]
"""Folder of Equipoise itself."""
_LOADED: set[str] = set()
"""Names of the classes that were loaded."""


def load_class(name: str, kind: str) -> object:
    """Load a user class.

    Args:
        name: `module:Class` or `path/to/file.py:Class`.
        kind: What it is used for (`method`, `task`), for errors.

    Returns:
        The class, or None if the module does not have it.

    Raises:
        UsageError: If the module or file cannot be imported.
    """
    where, _, class_name = name.rpartition(":")
    _LOADED.add(name)
    if where == PYTHON_OBJECT:
        raise UsageError(
            f"{kind} '{class_name}' was given in Python: go on with {RESUME_HINT.format(kind)}"
        )
    module = (
        _of_file(Path(where), class_name, kind)
        if where.endswith(".py")
        else _module(where, name, kind)
    )
    return getattr(module, class_name, None)


def class_path(kind: type) -> str:
    """Return the name of a class for a run's config.

    Args:
        kind: The class.

    Returns:
        `module:Class` if it can be imported again, otherwise `python:Class`.
    """
    module = kind.__module__
    name = kind.__qualname__
    importable = (
        module != "__main__" and "." not in name and importlib.util.find_spec(module) is not None
    )
    return f"{module}:{name}" if importable else f"{PYTHON_OBJECT}:{name.rpartition('.')[2]}"


def own_code_place(error: BaseException) -> str:
    """Find where an error arose in the user's own code.

    Args:
        error: An error with its traceback.

    Returns:
        `file.py:LINE in NAME`, or an empty string if no code of the user was involved.
    """
    if not _LOADED:
        return ""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    places = sysconfig.get_paths()
    not_own = (str(PACKAGE), *(places[name] for name in ("stdlib", "purelib", "platlib")), "<")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(not_own):
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return ""


def _of_file(path: Path, class_name: str, kind: str) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"there is no file '{path}' to take {kind} '{class_name}' from")
    name = f"equipoise_own_{path.stem}"  # its own name could be that of a module that others import
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = (
        module  # dataclasses look there for the meaning of annotations that are texts
    )
    spec.loader.exec_module(module)
    return module


def _module(module: str, name: str, kind: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{kind} '{name}': {error}; if it was given in Python, use {RESUME_HINT.format(kind)}"
        ) from error
