"""Methods written by users: load them, check them, and explain their mistakes in a sentence.

A user's method is a subclass of `Method` in a module, a file or a notebook cell.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, get_type_hints

from torch import Tensor

from equipoise.core import Capabilities, ClientUpdate, LocalHParams, Method, ServerMessage
from equipoise.core.method import HOOKS
from equipoise.utils.errors import UsageError
from equipoise.utils.plugins import load_class

HOOK_RESULTS: dict[str, tuple[str, tuple[type, ...]]] = {
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
"""The first value that a hook returns, in words and as types; the second one is the state."""
MISSPELLING_SIMILARITY = 0.8
"""From this similarity to a hook's name on, a method's name counts as a misspelling of it."""


def load_user_method(name: str) -> type[Method]:
    """Load a user's method.

    Args:
        name: `module:Class` or `path/to/file.py:Class`.

    Returns:
        The class, checked by `validate_user_method`.

    Raises:
        UsageError: If there is no such class, or it is not a sound method.
    """
    module, _, class_name = name.rpartition(":")
    method = load_class(name, "method")
    if not (inspect.isclass(method) and issubclass(method, Method)):
        raise UsageError(f"'{module}' has no class '{class_name}' that is a Method")
    return validate_user_method(method)


def validate_user_method(method: type[Method]) -> type[Method]:
    """Check a user's class for common mistakes.

    Its hooks are wrapped, so that a wrong result or an operation that cannot be vectorised is
    reported in a sentence. A class without a `name` gets its class name in lower case.

    Args:
        method: The class.

    Returns:
        The same class.

    Raises:
        UsageError: If it is not a `Method`, has options but is no dataclass, has a method whose
            name looks like a misspelt hook, or a type annotation that is unknown.
    """
    if not (inspect.isclass(method) and issubclass(method, Method)):
        raise UsageError(
            f"method is {method!r}: give a name, a subclass of equipoise.Method, or an instance "
            "of one"
        )
    if not hasattr(method, "name"):
        method.name = method.__name__.lower()
    for cls in method.__mro__:
        if issubclass(cls, Method) and not cls.__module__.startswith("equipoise."):
            _validate_class(cls)
    try:
        get_type_hints(method)
    except NameError as error:
        raise UsageError(
            f"a type in {method.__name__} is not known where the class is defined ({error}): "
            "import it at the top"
        ) from error
    return method


def _check_capabilities(cls: type[Method]) -> None:
    """Refuse a class that sees uploads, although it inherits that they are summed elsewhere."""
    overridden = {"aggregation_weights", "aggregate"} & vars(cls).keys()
    stated = vars(cls).get("capabilities", cls.capabilities)
    if not overridden or not isinstance(stated, Capabilities) or "capabilities" in vars(cls):
        return
    if stated.aggregates_by_sum:
        raise UsageError(
            f"{cls.__name__} overrides {min(overridden)}, and inherits aggregates_by_sum, with "
            "which the server sees no uploads: state capabilities = "
            "Capabilities(aggregates_by_sum=False) in the class, or True if it reads metrics alone"
        )


def _validate_class(cls: type[Method]) -> None:
    """Check one class of a user and wrap the hooks that it defines."""
    _check_capabilities(cls)
    _require_dataclass(cls)
    for name, function in list(vars(cls).items()):
        if not isinstance(function, FunctionType) or name.startswith("_"):
            continue
        _refuse_misspelt_hook(cls, name)
        if name in HOOK_RESULTS and not hasattr(function, "_has_helpful_errors"):
            setattr(cls, name, _with_helpful_errors(cls, name, function))


def _require_dataclass(cls: type[Method]) -> None:
    """Refuse a class with options that is not a dataclass."""
    options = [name for name, value in vars(cls).items() if isinstance(value, dataclasses.Field)]
    if options:
        raise UsageError(
            f"{cls.__name__} has the option '{options[0]}': write @dataclass(frozen=True) above "
            "the class"
        )


def _refuse_misspelt_hook(cls: type[Method], name: str) -> None:
    """Refuse a name that is nearly, but not quite, the name of a hook."""
    if hasattr(Method, name):
        return
    hooks = [*HOOKS, "check", "init_client", "init_server"]
    similar = difflib.get_close_matches(name, hooks, 1, MISSPELLING_SIMILARITY)
    if similar:
        raise UsageError(
            f"{cls.__name__}.{name} is not a hook of a method, so nothing would call it: did you "
            f"mean '{similar[0]}'? If it is a helper of yours, call it _{name}"
        )


def _with_helpful_errors(
    cls: type[Method], hook: str, function: Callable[..., Any]
) -> Callable[..., Any]:
    """Wrap a hook, so that its mistakes are reported in a sentence."""
    expected, types = HOOK_RESULTS[hook]
    hook_name = f"{cls.__name__}.{hook}"

    @functools.wraps(function)
    def call(self: Method, *arguments: Any) -> Any:
        try:
            result = function(self, *arguments)
        except RuntimeError as error:
            reason = next(iter(str(error).splitlines()), "")
            if "vmap" not in reason and "functorch" not in reason:
                raise
            raise UsageError(
                f"{hook_name} cannot be computed for many clients at once: {_vmap_advice(reason)}"
            ) from error
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
            raise UsageError(
                f"{hook_name} returns {_describe(result)}: it must return two, {expected} and the "
                "state"
            )
        if not isinstance(result[0], types):
            raise UsageError(
                f"{hook_name} returns a {type(result[0]).__name__} as its first value: it must be "
                f"{expected}"
            )
        return result

    call._has_helpful_errors = True  # type: ignore[attr-defined]
    return call


def _describe(result: Any) -> str:
    """Describe a result that is not a pair of a value and a state."""
    if not isinstance(result, tuple):
        return f"one value ({type(result).__name__})"
    if len(result) == 2:
        return "something else than a state as its second value"
    return f"{len(result)} values"


def _vmap_advice(reason: str) -> str:
    """Say what to write instead of an operation that `torch.vmap` refuses."""
    if "random" in reason:
        return (
            "it draws random numbers of torch; use client.uniform(...), which depends on seed, "
            "client and round only"
        )
    if ".item()" in reason:
        return (
            "it takes a number out of a tensor with .item(), int() or float(); compute with the "
            "tensor itself"
        )
    if "control flow" in reason:
        return "it branches on a tensor's value; use torch.where(condition, a, b)"
    return f"{reason}; --executor loop takes one client after another"
