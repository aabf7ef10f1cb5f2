"""Poisoned clients of a task, and the success rate of their backdoor."""

from __future__ import annotations

import torch

from equipoise.core import Params, Task
from equipoise.data.poisoning import BACKDOOR_CLASS, PoisonedData, add_trigger
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Ints


def poison(task: Task, attack: str, hostile: Ints) -> ExamplesTask:
    """Return the task in which some clients train on poisoned rows.

    Args:
        task: The task.
        attack: `labels` or `backdoor`, see `equipoise.data.poisoning`.
        hostile: Numbers of the attacking clients.

    Raises:
        UsageError: If the task has no rows.
    """
    if not isinstance(task, ExamplesTask):
        raise UsageError(
            f"task '{task.info.name}' has no rows to falsify: choose another attack than {attack}"
        )
    return task.with_data(PoisonedData(task.data, attack, hostile))


def backdoor_success_rate(task: Task, params: Params) -> float | None:
    """Compute the share of triggered test rows that get the backdoor's class.

    Rows of the backdoor's own class are left out.

    Args:
        task: The task, poisoned or not.
        params: Global model.

    Returns:
        The share, or None if no client has a backdoor.
    """
    if not isinstance(task, ExamplesTask) or not isinstance(task.data, PoisonedData):
        return None
    if task.data.attack != "backdoor":
        return None
    x, y = task.data.server("test")
    with torch.no_grad():
        triggered = task.prepare(add_trigger(x[y != BACKDOOR_CLASS]))
        predicted = task.forward(params, triggered).argmax(-1)
    return float((predicted == BACKDOOR_CLASS).double().mean())
