"""A refusal that several methods share: a pull that makes SGD diverge."""

from __future__ import annotations

from equipoise.core import Method, TrainingConfig
from equipoise.utils.errors import UsageError


def refuse_unstable_pull(method: Method, name: str, training: TrainingConfig) -> None:
    """SGD on strength/2 |p - anchor|^2 alone multiplies the distance by 1 - lr * strength: from 2 on it diverges."""
    strength = getattr(method, name)
    if training.lr * strength >= 2:
        raise UsageError(
            f"{method.name} with {name}={strength:g} and lr={training.lr:g} diverges, since their product is 2 or "
            "more: lower one of them"
        )
