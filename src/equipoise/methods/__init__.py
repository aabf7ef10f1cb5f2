"""Methods, one file each. A file in one of the listed packages that defines a :class:`Method` is found by its name."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

from equipoise.contract import Method
from equipoise.errors import UsageError

PACKAGES = ("equipoise.methods", "equipoise.control", "equipoise.frl")


def all_methods() -> dict[str, type[Method]]:
    """Every method that ships, by name."""
    found: dict[str, type[Method]] = {}
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            continue
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
            for method in _methods_in(importlib.import_module(f"{package}.{info.name}")):
                found[method.name] = method
    return dict(sorted(found.items()))


def find_method(name: str) -> type[Method]:
    """A method by name, or the user's own as ``module:Class`` or ``path/to/file.py:Class``."""
    if ":" in name:
        return _own_method(name)
    methods = all_methods()
    if name not in methods:
        raise UsageError(f"unknown method '{name}'{nearest(name, methods)}; see 'equipoise list methods'")
    return methods[name]


def nearest(name: str, known: object) -> str:
    """The end of an error: the closest names, if any are close."""
    close = difflib.get_close_matches(name, list(known), 3, 0.5)  # type: ignore[call-overload]
    return f": did you mean {' or '.join(repr(str(c)) for c in close)}?" if close else ""


def _methods_in(module: ModuleType) -> list[type[Method]]:
    return [
        item
        for _, item in inspect.getmembers(module, inspect.isclass)
        if issubclass(item, Method) and "name" in vars(item) and item.__module__ == module.__name__
    ]


def _own_method(name: str) -> type[Method]:
    where, _, class_name = name.rpartition(":")
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise UsageError(f"there is no file '{where}' to take method '{class_name}' from")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(where)
        except ImportError as error:
            raise UsageError(f"method '{name}': {error}") from error
    method = getattr(module, class_name, None)
    if not (inspect.isclass(method) and issubclass(method, Method)):
        raise UsageError(f"'{where}' has no class '{class_name}' that is a Method")
    return method
