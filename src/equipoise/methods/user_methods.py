"""Methods of the user's own: found in a module, a file or a notebook cell, and explained where their author erred."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, get_type_hints

from torch import Tensor

from equipoise.core import ClientUpdate, LocalHParams, Method, ServerMessage
from equipoise.core.method import HOOKS
from equipoise.utils.errors import UsageError
from equipoise.utils.plugins import class_named

GIVES: dict[str, tuple[str, tuple[type, ...]]] = {
    "receive": ("the model to train from", (dict,)),
    "configure_training": ("a LocalHParams", (LocalHParams,)),
    "train": ("the trained model", (dict,)),
    "upload": ("a ClientUpdate", (ClientUpdate,)),
    "select_clients": ("the numbers of the clients", (Tensor,)),
    "distribute": ("a ServerMessage", (ServerMessage,)),
    "aggregation_weights": ("the weights", (object,)),
    "apply_sums": ("the next global model", (dict,)),
    "aggregate": ("the next global model", (dict,)),
}
"""What hooks return in front of the state."""
SURE = 0.8  # how alike a name and a hook's must be to be taken for a slip of the pen


def load_user_method(name: str) -> type[Method]:
    """The class that ``module:Class`` or ``path/to/file.py:Class`` names."""
    where, _, class_name = name.rpartition(":")
    method = class_named(name, "method")
    if not (inspect.isclass(method) and issubclass(method, Method)):
        raise UsageError(f"'{where}' has no class '{class_name}' that is a Method")
    return validate_user_method(method)


def validate_user_method(method: type[Method]) -> type[Method]:
    """The class, checked for what its author may have overlooked; its hooks will say in a sentence what they did wrong.

    A class without a ``name`` is called as it is written, in small letters.
    """
    if not (inspect.isclass(method) and issubclass(method, Method)):
        raise UsageError(
            f"method is {method!r}: give a name, a subclass of equipoise.Method, or an instance of one"
        )
    if not hasattr(method, "name"):
        method.name = method.__name__.lower()
    own = [
        kind
        for kind in method.__mro__
        if issubclass(kind, Method) and not kind.__module__.startswith("equipoise.")
    ]
    for kind in own:
        _refuse_no_dataclass(kind)
        for name, function in list(vars(kind).items()):
            if not isinstance(function, FunctionType) or name.startswith("_"):
                continue
            _refuse_misspelt(kind, name)
            if name in GIVES and not hasattr(function, "_explained"):
                setattr(kind, name, _with_helpful_errors(kind, name, function))
    try:
        get_type_hints(method)
    except NameError as error:
        raise UsageError(
            f"a type in {method.__name__} is not known where the class is defined ({error}): import it at the top"
        ) from error
    return method


def _refuse_no_dataclass(kind: type[Method]) -> None:
    options = [name for name, value in vars(kind).items() if isinstance(value, dataclasses.Field)]
    if options:
        raise UsageError(
            f"{kind.__name__} has the option '{options[0]}': write @dataclass(frozen=True) above the class"
        )


def _refuse_misspelt(kind: type[Method], name: str) -> None:
    hooks = [*HOOKS, "check", "client_init", "server_init"]
    close = [] if hasattr(Method, name) else difflib.get_close_matches(name, hooks, 1, SURE)
    if close:
        raise UsageError(
            f"{kind.__name__}.{name} is not a hook of a method, so nothing would call it: did you mean '{close[0]}'? "
            f"If it is a helper of yours, call it _{name}"
        )


def _with_helpful_errors(
    kind: type[Method], hook: str, function: Callable[..., Any]
) -> Callable[..., Any]:
    what, types = GIVES[hook]

    @functools.wraps(function)
    def call(self: Method, *arguments: Any) -> Any:
        try:
            result = function(self, *arguments)
        except RuntimeError as error:
            reason = next(iter(str(error).splitlines()), "")
            if "vmap" not in reason and "functorch" not in reason:
                raise
            raise UsageError(
                f"{kind.__name__}.{hook} cannot be computed for many clients at once: {_cure(reason)}"
            ) from (error)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            given = (
                f"{len(result)} values"
                if isinstance(result, tuple)
                else f"one value ({type(result).__name__})"
            )
            given = (
                "something else than a state as its second value" if given == "2 values" else given
            )
            raise UsageError(
                f"{kind.__name__}.{hook} returns {given}: it must return two, {what} and the state"
            )
        if not isinstance(result[0], types):
            raise UsageError(
                f"{kind.__name__}.{hook} returns a {type(result[0]).__name__} as its first value: it must be {what}"
            )
        return result

    call._explained = True  # type: ignore[attr-defined]
    return call


def _cure(reason: str) -> str:
    """What to write instead of what cannot be mapped."""
    if "random" in reason:
        return "it draws random numbers of torch; use c.uniform(...), which depends on seed, client and round only"
    if ".item()" in reason:
        return "it takes a number out of a tensor with .item(), int() or float(); compute with the tensor itself"
    if "control flow" in reason:
        return "it branches on a tensor's value; use torch.where(condition, a, b)"
    return f"{reason}; --executor loop takes one client after another"
