"""Tasks with labelled samples: methods may build losses of their own on the model's outputs."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from equipoise.contract import Method, State, Task, Tree
from equipoise.core.errors import UsageError


class Supervised(Task):
    """What is known beyond a :class:`Task`: outputs, the loss of each sample, and how labels are spread."""

    @abstractmethod
    def forward(self, params: Tree, x: Tensor) -> Tensor:
        """Logits ``[B, classes]`` of one model."""

    @abstractmethod
    def losses(self, params: Tree, x: Tensor, y: Tensor, aux: State) -> Tensor:
        """The task's own :data:`~equipoise.contract.Loss`."""

    @abstractmethod
    def label_counts(self, ids: Tensor) -> Tensor:
        """Training samples of each class ``[K, classes]``, as int64."""


def supervised(method: Method, task: Task) -> Supervised:
    """The task, if it has labels; else the method is refused."""
    if not isinstance(task, Supervised):
        raise UsageError(
            f"{method.name} needs labelled samples, and task '{task.name}' has none: choose another method"
        )
    return task
