"""Refusals that several methods share: bad option values, before any work starts."""

from __future__ import annotations

import math

from equipoise.contract import Method, Training
from equipoise.core.errors import UsageError


def refuse_below(method: Method, least: float, *options: str) -> None:
    """Options that must be finite and at least ``least``."""
    for name in options:
        value = getattr(method, name)
        if not least <= value < math.inf:
            raise UsageError(f"{method.name} needs {name} of at least {least:g}, not {value:g}")


def refuse_not_above(method: Method, bound: float, *options: str) -> None:
    """Options that must be finite and above ``bound``."""
    for name in options:
        value = getattr(method, name)
        if not bound < value < math.inf:
            raise UsageError(f"{method.name} needs {name} above {bound:g}, not {value:g}")


def refuse_unstable_pull(method: Method, name: str, training: Training) -> None:
    """SGD on strength/2 |p - anchor|^2 alone multiplies the distance by 1 - lr * strength: from 2 on it diverges."""
    strength = getattr(method, name)
    if training.lr * strength >= 2:
        raise UsageError(
            f"{method.name} with {name}={strength:g} and lr={training.lr:g} diverges, since their product is 2 or "
            "more: lower one of them"
        )
