"""Methods, one file each: ``fedavg`` is the class of that name in ``fedavg.py`` (``-`` in a name is ``_`` in its file).

They are found by file name, so a new method is a new file and nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

from equipoise.contract import Method
from equipoise.core.errors import UsageError, nearest

PACKAGES = ("equipoise.methods", "equipoise.methods.page", "equipoise.methods.fedpolicy", "equipoise.methods.rl")


def all_methods() -> dict[str, type[Method]]:
    """Every method that ships, by name."""
    found: dict[str, type[Method]] = {}
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            continue
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
            method = _method_in(importlib.import_module(f"{package}.{info.name}"))
            if method is not None:
                found[method.name] = method
    return dict(sorted(found.items()))


def find_method(name: str) -> type[Method]:
    """A method by name, or the user's own as ``module:Class`` or ``path/to/file.py:Class``."""
    if ":" in name:
        return _own_method(name)
    file = name.replace("-", "_")
    for package in PACKAGES:
        if file.isidentifier() and importlib.util.find_spec(f"{package}.{file}") is not None:
            method = _method_in(importlib.import_module(f"{package}.{file}"))
            if method is not None and method.name == name:
                return method
    raise UsageError(f"unknown method '{name}'{nearest(name, all_methods())}; see 'equipoise list methods'")


def _method_in(module: ModuleType) -> type[Method] | None:
    for _, item in inspect.getmembers(module, inspect.isclass):
        if issubclass(item, Method) and "name" in vars(item) and item.__module__ == module.__name__:
            return item
    return None


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
