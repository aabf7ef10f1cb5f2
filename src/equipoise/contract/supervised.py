"""Tasks with labelled samples: methods may build losses of their own on the model's outputs."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from numpy.random import Generator
from torch import Tensor, nn

from equipoise.contract.method import Method
from equipoise.contract.task import Task
from equipoise.core.errors import UsageError
from equipoise.core.trees import State, Params


class SupervisedTask(Task):
    """What is known beyond a :class:`Task`: outputs, the loss of each sample, and how labels are spread."""

    supports_fork: ClassVar[bool] = True
    target_kind: str = "classification"
    """What is predicted: classes, a number (``regression``), or a risk (``survival``)."""
    module: nn.Module
    """The network, whose parameters are replaced by those of a model."""

    @abstractmethod
    def example_inputs(self, count: int) -> Tensor:
        """So many of the server's test samples, as the network takes them."""

    @abstractmethod
    def num_server_rows(self, split: str) -> int:
        """Samples of the server's ``public`` or ``test`` set."""

    @abstractmethod
    def forward(self, params: Params, x: Tensor) -> Tensor:
        """Outputs of one model, ``[B, classes]`` logits or ``[B, 1]``."""

    @abstractmethod
    def losses(self, params: Params, x: Tensor, y: Tensor, aux: State) -> Tensor:
        """The task's own :data:`~equipoise.contract.Loss`."""

    @abstractmethod
    def confidence_interval(self, client: int, params: Params, random: Generator) -> tuple[float, float]:
        """Between which bounds the headline of this client's model lies in 95 of 100 test sets like its own."""

    @abstractmethod
    def constant_baseline(self, client: int) -> Params:
        """Test scores of who predicts the same for every row, from the client's own training targets."""

    @abstractmethod
    def label_counts(self, ids: Tensor) -> Tensor:
        """Training samples of each class ``[K, classes]``, as int64; all in one where there are no classes."""


def require_supervised(method: Method, task: Task) -> SupervisedTask:
    """The task, if it has labels; else the method is refused."""
    if not isinstance(task, SupervisedTask):
        raise UsageError(
            f"{method.name} needs labelled samples, and task '{task.name}' has none: choose another method"
        )
    return task
