"""Federated learning methods.

Most methods have a file of their own: `fedavg` is `FedAvg` in `fedavg.py`. Methods are found by
importing the files of this package, so that a new method needs a new file and nothing else. Each
class is also an attribute of this package, as in `equipoise.methods.FedProx(mu=0.1)`; editors
complete from the imports below.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import TYPE_CHECKING

from equipoise.core import Method
from equipoise.methods.user_methods import load_user_method, validate_user_method
from equipoise.utils.discovery import all_declared, find_declared
from equipoise.utils.errors import did_you_mean
from equipoise.utils.plugins import class_path

if TYPE_CHECKING:  # For editors only: a method that is not listed here works as well.
    from equipoise.methods.autopilot import Autopilot as Autopilot
    from equipoise.methods.dapfl import DapFL as DapFL
    from equipoise.methods.ditto import Ditto as Ditto
    from equipoise.methods.fedala import FedAla as FedAla
    from equipoise.methods.fedavg import FedAvg as FedAvg
    from equipoise.methods.fedbabu import FedBabu as FedBabu
    from equipoise.methods.fedbn import FedBN as FedBN
    from equipoise.methods.feddbe import FedDbe as FedDbe
    from equipoise.methods.feddyn import FedDyn as FedDyn
    from equipoise.methods.fedopt import FedAvgM as FedAvgM
    from equipoise.methods.fedper import FedPer as FedPer
    from equipoise.methods.fedpolicy.fedpolicy import FedPolicy as FedPolicy
    from equipoise.methods.fedprox import FedProx as FedProx
    from equipoise.methods.fedrecon import FedRecon as FedRecon
    from equipoise.methods.fedrep import FedRep as FedRep
    from equipoise.methods.fedrod import FedRod as FedRod
    from equipoise.methods.fedtrees import FedTrees as FedTrees
    from equipoise.methods.finetune import Finetune as Finetune
    from equipoise.methods.joint import Joint as Joint
    from equipoise.methods.lgfedavg import LgFedAvg as LgFedAvg
    from equipoise.methods.local import Local as Local
    from equipoise.methods.page.page import Page as Page
    from equipoise.methods.pfedme import PFedMe as PFedMe
    from equipoise.methods.rl_deep import Dqn as Dqn
    from equipoise.methods.rl_deep import DqnAvg as DqnAvg
    from equipoise.methods.rl_deep import DqnAvgIm as DqnAvgIm
    from equipoise.methods.rl_deep import PerDqnAvg as PerDqnAvg
    from equipoise.methods.rl_deep import PFedDqnRep as PFedDqnRep
    from equipoise.methods.rl_linear import FedQ as FedQ
    from equipoise.methods.rl_linear import FedTD as FedTD
    from equipoise.methods.rl_linear import LinearQ as LinearQ
    from equipoise.methods.rl_linear import LinearTD as LinearTD
    from equipoise.methods.rl_linear import PFedQRep as PFedQRep
    from equipoise.methods.rl_linear import PFedTDRep as PFedTDRep
    from equipoise.methods.rl_tabular import FedAsynQEq as FedAsynQEq
    from equipoise.methods.rl_tabular import FedAsynQIm as FedAsynQIm
    from equipoise.methods.rl_tabular import FedAsynQTa as FedAsynQTa
    from equipoise.methods.rl_tabular import FedDVRQ as FedDVRQ
    from equipoise.methods.rl_tabular import FedSynQ as FedSynQ
    from equipoise.methods.scaffold import Scaffold as Scaffold

__all__ = ["all_methods", "find_method"]
PACKAGES = ("equipoise.methods", "equipoise.methods.page", "equipoise.methods.fedpolicy")


def all_methods() -> dict[str, type[Method]]:
    """Return every method of this package by name."""
    return all_declared(PACKAGES, _methods_in)


def find_method(name: str | type[Method]) -> type[Method]:
    """Find a method.

    Args:
        name: A method's name, a class, or a user's class as `module:Class` or
            `path/file.py:Class`.

    Returns:
        The method's class.

    Raises:
        UsageError: If there is no such method; the message names the nearest one.
    """
    if not isinstance(name, str):
        return name if is_builtin(name) else validate_user_method(name)
    if ":" in name:
        return load_user_method(name)
    return find_declared("method", name, PACKAGES, _methods_in)


def usual_method(model: object) -> str:
    """Return the method of a run that names none.

    Args:
        model: The model of the run. Trees cannot be averaged and have a method of their own.
    """
    trees = find_method("fedtrees")
    return trees.name if model == trees.model else "fedavg"


def recorded_name(method: type[Method]) -> str:
    """Return the name of a method in a run's config.

    Args:
        method: A class of this package or of the user.

    Returns:
        A name that `find_method` resolves, if the class can be imported.
    """
    if is_builtin(method):
        return method.name
    return class_path(method)


def is_builtin(method: type[Method]) -> bool:
    """Return whether a class is one of the methods of this package."""
    return any(method.__module__.rpartition(".")[0] == package for package in PACKAGES)


def _methods_in(module: ModuleType) -> dict[str, type[Method]]:
    """Return the methods that a module defines, by name."""
    return {
        item.name: item
        for _, item in inspect.getmembers(module, inspect.isclass)
        if issubclass(item, Method) and "name" in vars(item) and item.__module__ == module.__name__
    }


def _classes() -> dict[str, type[Method]]:
    """Return every method of this package by the name of its class."""
    return {method.__name__: method for method in all_methods().values()}


if not TYPE_CHECKING:  # A type checker must see the imports above, not these functions.

    def __dir__() -> list[str]:
        return [*__all__, *_classes()]

    def __getattr__(name: str) -> type[Method]:
        """Return a method's class by the name of the class, and import it if necessary."""
        if name.startswith("_"):
            raise AttributeError(f"module 'equipoise.methods' has no attribute '{name}'")
        known = _classes()
        if name not in known:
            raise AttributeError(
                f"there is no method class '{name}' in equipoise.methods{did_you_mean(name, known)}"
            )
        return known[name]
