"""Methods, one file each: ``fedavg`` is the class of that name in ``fedavg.py`` (``-`` in a name is ``_`` in its file).

They are found by file name, so a new method is a new file and nothing else. As a namespace this package gives each
class by its name, ``equipoise.methods.FedProx(mu=0.1)``; editors complete from the imports below.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING

from equipoise.contract import Method
from equipoise.core.elsewhere import recorded
from equipoise.core.errors import UsageError, nearest
from equipoise.methods.own import validate_user_method, load_user_method

if TYPE_CHECKING:  # for editors alone: a method that is not listed here works all the same
    from equipoise.methods.autopilot import Autopilot as Autopilot
    from equipoise.methods.dapfl import DapFL as DapFL
    from equipoise.methods.ditto import Ditto as Ditto
    from equipoise.methods.fedala import FedAla as FedAla
    from equipoise.methods.fedavg import FedAvg as FedAvg
    from equipoise.methods.fedavgm import FedAvgM as FedAvgM
    from equipoise.methods.fedbabu import FedBabu as FedBabu
    from equipoise.methods.fedbn import FedBN as FedBN
    from equipoise.methods.feddyn import FedDyn as FedDyn
    from equipoise.methods.fedper import FedPer as FedPer
    from equipoise.methods.fedpolicy.fedpolicy import FedPolicy as FedPolicy
    from equipoise.methods.fedpolicy.joint import Joint as Joint
    from equipoise.methods.fedprox import FedProx as FedProx
    from equipoise.methods.fedrecon import FedRecon as FedRecon
    from equipoise.methods.fedrep import FedRep as FedRep
    from equipoise.methods.fedrod import FedRod as FedRod
    from equipoise.methods.finetune import Finetune as Finetune
    from equipoise.methods.lgfedavg import LgFedAvg as LgFedAvg
    from equipoise.methods.local import Local as Local
    from equipoise.methods.page.page import Page as Page
    from equipoise.methods.pfedme import PFedMe as PFedMe
    from equipoise.methods.rl.dqn import Dqn as Dqn
    from equipoise.methods.rl.dqnavg import DqnAvg as DqnAvg
    from equipoise.methods.rl.dqnavg_im import DqnAvgIm as DqnAvgIm
    from equipoise.methods.rl.fedasynq_eq import FedAsynQEq as FedAsynQEq
    from equipoise.methods.rl.fedasynq_im import FedAsynQIm as FedAsynQIm
    from equipoise.methods.rl.fedasynq_ta import FedAsynQTa as FedAsynQTa
    from equipoise.methods.rl.feddvrq import FedDVRQ as FedDVRQ
    from equipoise.methods.rl.fedq import FedQ as FedQ
    from equipoise.methods.rl.fedsynq import FedSynQ as FedSynQ
    from equipoise.methods.rl.fedtd import FedTD as FedTD
    from equipoise.methods.rl.perdqnavg import PerDqnAvg as PerDqnAvg
    from equipoise.methods.rl.pfeddqn_rep import PFedDqnRep as PFedDqnRep
    from equipoise.methods.rl.pfedq_rep import PFedQRep as PFedQRep
    from equipoise.methods.rl.pfedtd_rep import PFedTDRep as PFedTDRep
    from equipoise.methods.rl.q import IndependentQ as IndependentQ
    from equipoise.methods.rl.td import TD as TD
    from equipoise.methods.scaffold import Scaffold as Scaffold

__all__ = ["all_methods", "find_method"]
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
        return wanted if ships(wanted) else validate_user_method(wanted)
    if ":" in wanted:
        return load_user_method(wanted)
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
    return recorded(method)


def ships(method: type[Method]) -> bool:
    """Whether it is one of the methods of this package."""
    return any(method.__module__.rpartition(".")[0] == package for package in PACKAGES)


def _method_in(module: ModuleType) -> type[Method] | None:
    for _, item in inspect.getmembers(module, inspect.isclass):
        if issubclass(item, Method) and "name" in vars(item) and item.__module__ == module.__name__:
            return item
    return None


def _classes() -> dict[str, type[Method]]:
    return {method.__name__: method for method in all_methods().values()}


if not TYPE_CHECKING:  # a type checker shall see the imports above, not a function that gives anything

    def __dir__() -> list[str]:
        return [*__all__, *_classes()]

    def __getattr__(name: str) -> type[Method]:
        """A method's class by its name; loaded when it is asked for."""
        if name.startswith("_"):
            raise AttributeError(f"module 'equipoise.methods' has no attribute '{name}'")
        known = _classes()
        if name not in known:
            raise AttributeError(f"there is no method class '{name}' in equipoise.methods{nearest(name, known)}")
        return known[name]
