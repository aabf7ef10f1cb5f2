"""Methods, one file each: ``fedavg`` is the class of that name in ``fedavg.py`` (``-`` in a name is ``_`` in its file).

They are found by file name, so a new method is a new file. As a namespace this package gives each class by its name,
``equipoise.methods.FedProx(mu=0.1)``; the imports below are what editors and type checkers complete from.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING

from equipoise.contract import Method
from equipoise.core.errors import IN_PYTHON, UsageError, nearest
from equipoise.methods.own import adopted, named_elsewhere

if TYPE_CHECKING:
    from equipoise.methods.dapfl import DapFL
    from equipoise.methods.ditto import Ditto
    from equipoise.methods.equilibrium import Equilibrium
    from equipoise.methods.fedala import FedAla
    from equipoise.methods.fedavg import FedAvg
    from equipoise.methods.fedavgm import FedAvgM
    from equipoise.methods.fedbabu import FedBabu
    from equipoise.methods.fedbn import FedBN
    from equipoise.methods.feddyn import FedDyn
    from equipoise.methods.fedper import FedPer
    from equipoise.methods.fedpolicy.fedpolicy import FedPolicy
    from equipoise.methods.fedpolicy.joint import Joint
    from equipoise.methods.fedprox import FedProx
    from equipoise.methods.fedrecon import FedRecon
    from equipoise.methods.fedrep import FedRep
    from equipoise.methods.fedrod import FedRod
    from equipoise.methods.finetune import Finetune
    from equipoise.methods.lgfedavg import LgFedAvg
    from equipoise.methods.local import Local
    from equipoise.methods.page.page import Page
    from equipoise.methods.page.page_shared import PageShared
    from equipoise.methods.pfedme import PFedMe
    from equipoise.methods.rl.dqn import Dqn
    from equipoise.methods.rl.dqnavg import DqnAvg
    from equipoise.methods.rl.fedasynq_eq import FedAsynQEq
    from equipoise.methods.rl.fedasynq_im import FedAsynQIm
    from equipoise.methods.rl.fedasynq_ta import FedAsynQTa
    from equipoise.methods.rl.fedq import FedQ
    from equipoise.methods.rl.fedsynq import FedSynQ
    from equipoise.methods.rl.fedtd import FedTD
    from equipoise.methods.rl.perdqnavg import PerDqnAvg
    from equipoise.methods.rl.pfeddqn_rep import PFedDqnRep
    from equipoise.methods.rl.pfedq_rep import PFedQRep
    from equipoise.methods.rl.pfedtd_rep import PFedTDRep
    from equipoise.methods.rl.q import IndependentQ
    from equipoise.methods.rl.td import TD
    from equipoise.methods.scaffold import Scaffold

__all__ = [
    "TD",
    "DapFL",
    "Ditto",
    "Dqn",
    "DqnAvg",
    "Equilibrium",
    "FedAla",
    "FedAsynQEq",
    "FedAsynQIm",
    "FedAsynQTa",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedBabu",
    "FedDyn",
    "FedPer",
    "FedPolicy",
    "FedProx",
    "FedQ",
    "FedRecon",
    "FedRep",
    "FedRod",
    "FedSynQ",
    "FedTD",
    "Finetune",
    "IndependentQ",
    "Joint",
    "LgFedAvg",
    "Local",
    "PFedDqnRep",
    "PFedMe",
    "PFedQRep",
    "PFedTDRep",
    "Page",
    "PageShared",
    "PerDqnAvg",
    "Scaffold",
    "all_methods",
    "find_method",
]
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


def find_method(wanted: str | type[Method]) -> type[Method]:
    """A method by name, a class, or the user's own as ``module:Class`` or ``path/to/file.py:Class``."""
    if not isinstance(wanted, str):
        return wanted if ships(wanted) else adopted(wanted)
    if ":" in wanted:
        return named_elsewhere(wanted)
    file = wanted.replace("-", "_")
    for package in PACKAGES:
        if file.isidentifier() and importlib.util.find_spec(f"{package}.{file}") is not None:
            method = _method_in(importlib.import_module(f"{package}.{file}"))
            if method is not None and method.name == wanted:
                return method
    raise UsageError(f"unknown method '{wanted}'{nearest(wanted, all_methods())}; see 'equipoise list methods'")


def recorded_name(method: type[Method]) -> str:
    """How a run's config names this class, so that it is found again where that is possible at all."""
    if ships(method):
        return method.name
    where, name = method.__module__, method.__qualname__
    importable = where != "__main__" and "." not in name and importlib.util.find_spec(where) is not None
    return f"{where}:{name}" if importable else f"{IN_PYTHON}:{name.rpartition('.')[2]}"


def ships(method: type[Method]) -> bool:
    """Whether it is one of the methods of this package."""
    return any(method.__module__.rpartition(".")[0] == package for package in PACKAGES)


def _method_in(module: ModuleType) -> type[Method] | None:
    for _, item in inspect.getmembers(module, inspect.isclass):
        if issubclass(item, Method) and "name" in vars(item) and item.__module__ == module.__name__:
            return item
    return None


if not TYPE_CHECKING:  # a type checker shall see the imports above, not a function that gives anything

    def __getattr__(name: str) -> type[Method]:
        """A method's class by its name; loaded when it is asked for."""
        by_class = {method.__name__: method for method in all_methods().values()} if name in __all__ else {}
        if name not in by_class:
            raise AttributeError(f"there is no method class '{name}' in equipoise.methods{nearest(name, __all__)}")
        return by_class[name]
