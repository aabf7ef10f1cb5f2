"""Checks that several methods share."""

from __future__ import annotations

from equipoise.core import Method, Task, TrainingConfig
from equipoise.utils.errors import UsageError


def require_stable_proximal(method: Method, option: str, training: TrainingConfig) -> None:
    """Refuse a proximal term with which SGD diverges.

    One SGD step on strength/2 |w - anchor|^2 alone multiplies the distance to the anchor by
    1 - lr * strength, so it diverges from lr * strength = 2 on.

    Args:
        method: The method.
        option: The name of its option that holds the strength.
        training: The run's training configuration, for the learning rate.

    Raises:
        UsageError: If the learning rate times the strength is 2 or more.
    """
    strength = getattr(method, option)
    if training.lr * strength >= 2:
        raise UsageError(
            f"{method.name} with {option}={strength:g} and lr={training.lr:g} diverges, since "
            "their product is 2 or more: lower one of them"
        )


def require_linear_head(method: Method, task: Task) -> None:
    """Refuse a model whose head is not one linear layer.

    Args:
        method: The method.
        task: The task of the run.

    Raises:
        UsageError: If the head has several layers, or parameters other than weight and bias.
    """
    head_names = task.info.param_names("head")
    layers = {name.rpartition(".")[0] for name in head_names}
    kinds = {name.rpartition(".")[2] for name in head_names}
    if len(layers) != 1 or kinds != {"weight", "bias"}:
        raise UsageError(
            f"{method.name} needs a head that is one linear layer with a bias, but that of task "
            f"'{task.info.name}' is {', '.join(head_names) or 'empty'}: choose another model"
        )
