"""Regression: one output, the target less its mean over its deviation, so that rates of training are usual ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.target import Target
from equipoise.learners.scores import numbers
from equipoise.learners.targets.objective import Metric, Objective


class Numbers(Objective):
    """Squared or absolute error, in deviations of the target; scores are in the target's unit."""

    usual: ClassVar[tuple[str, ...]] = ("rmse", "mae", "loss")
    metrics: ClassVar[Mapping[str, Metric]] = {"rmse": numbers.rmse, "mae": numbers.mae, "r2": numbers.r2}

    def __init__(self, target: Target, absolute: bool = False) -> None:
        super().__init__(target)
        self.absolute = absolute

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        error = outputs.squeeze(-1) - self._standardised(y).to(outputs.dtype)
        return error.abs() if self.absolute else error.square()

    def predicted(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1).double() * self.target.scale + self.target.mean

    def constant(self, y: Tensor) -> Tensor:
        """The mean; the median where the error is absolute."""
        middle = y.double().median() if self.absolute else y.double().mean()
        return self._standardised(middle).reshape(1)

    def columns(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        return {"predicted": self.predicted(outputs).numpy()}

    def merit(self, name: str, value: Tensor) -> Tensor:
        """1 for no error; for an error of one deviation of the target a half."""
        if name == "r2":
            return value.nan_to_num(0.0).clamp(0, 1)
        return 1 / (1 + (value if name == "loss" else value / self.target.scale))

    def _standardised(self, y: Tensor) -> Tensor:
        return (y - self.target.mean) / self.target.scale
