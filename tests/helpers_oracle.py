"""Local training of one client, straight from the task: what methods that train in phases are
checked against.
"""

from __future__ import annotations

from typing import Any

import torch

from equipoise.core import LocalTrainRequest, Params, RngContext, Task


def train(
    task: Task,
    client: int,
    params: Params,
    names: tuple[str, ...] | None = None,
    round: int = 1,
    **how: Any,
) -> Params:
    """``epochs`` and ``lr`` as configured unless given."""
    training = task.info.training
    epochs = torch.tensor(how.pop("epochs", training.epochs))
    lr = torch.tensor(how.pop("lr", training.lr), dtype=torch.float64)
    fit = LocalTrainRequest(params, epochs, lr, trainable=names or tuple(params), **how)
    return task.fit(torch.tensor(client), fit, {}, RngContext(0, round, training))[0]


def mean_by_size(task: Task, models: list[Params], names: tuple[str, ...]) -> Params:
    n = task.num_examples(torch.arange(task.info.num_clients)).double()
    return {
        name: sum(n[k] * model[name] for k, model in enumerate(models)) / n.sum() for name in names
    }
