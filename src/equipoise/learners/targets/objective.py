"""What a model's outputs mean: the loss that trains them, the scores that judge them, the predictions that people read.

One file per kind of :class:`~equipoise.data.target.Target`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.core.errors import UsageError, nearest
from equipoise.core.trees import Params
from equipoise.data.target import Target

Metric = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(predictions, y, which rows count) of K models to one number for each."""


class Objective(ABC):
    """For models with outputs ``[..., rows, outputs]``, whatever their architecture."""

    usual: ClassVar[tuple[str, ...]]
    """Scores of every evaluation, the headline first."""
    metrics: ClassVar[Mapping[str, Metric]]
    """Scores that are computed where they are asked for, and at the end of a run."""
    filler: ClassVar[float | None] = None
    """The ``y`` of rows that only fill a batch; ``None`` where it is enough that they weigh nothing."""
    closed_form: bool = False
    """Whether the loss is plain cross-entropy, whose gradient of linear models has a closed form."""

    def __init__(self, target: Target) -> None:
        self.target = target

    @property
    def scores(self) -> tuple[str, ...]:
        """All that this kind of target has, by name."""
        return (*self.usual, *(name for name in self.metrics if name not in self.usual))

    def headed(self, headline: str) -> tuple[str, ...]:
        """The scores of every evaluation with this one first."""
        if headline not in self.scores:
            raise UsageError(
                f"headline is '{headline}'{nearest(headline, self.scores)}: "
                f"{self.target.kind} has {', '.join(self.scores)}"
            )
        return (headline, *(name for name in self.usual if name != headline))

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each row ``[..., B]``, whose mean over the batch is what SGD descends."""

    @abstractmethod
    def predicted(self, outputs: Tensor) -> Tensor:
        """What :attr:`metrics` judge: logits, values in the target's unit, or risks."""

    @abstractmethod
    def constant(self, y: Tensor) -> Tensor:
        """The outputs of who knows a client's training targets ``y`` alone: the one to beat."""

    @abstractmethod
    def columns(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        """Predictions for people, by the names of their columns."""

    @abstractmethod
    def merit(self, name: str, value: Tensor) -> Tensor:
        """A score as a number in [0, 1], higher is better; where it is not defined, what chance gives."""

    def score(self, outputs: Tensor, y: Tensor, weight: Tensor | None, names: Iterable[str]) -> Params:
        """These scores ``[K]`` of outputs ``[K, n, outputs]``; rows of no ``weight`` only fill up."""
        real = torch.ones(outputs.shape[:2], dtype=torch.bool, device=y.device) if weight is None else weight > 0
        predicted, marked = self.predicted(outputs), self.marked(y, real)
        return {
            name: mean(self.losses(outputs, marked), weight)
            if name == "loss"
            else self.metrics[name](predicted, y, real)
            for name in names
        }

    def marked(self, y: Tensor, real: Tensor) -> Tensor:
        """``y`` with those of rows that only fill up made such that they change nothing."""
        if self.filler is None:
            return y
        return torch.where(real.reshape(*real.shape, *[1] * (y.dim() - real.dim())), y, self.filler)


def mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Over the last axis, by weights that sum to one."""
    if weight is None:
        return values.sum(-1).double() / values.shape[-1] if values.dtype == torch.bool else values.mean(-1)
    return (values * (weight if values.dtype == torch.bool else weight.to(values.dtype))).sum(-1)
