"""Kinds of target: what is minimised, how it is scored, what predictions look like."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from equipoise.data.federated_dataset import Target
from equipoise.training import metrics as classes
from equipoise.training import metrics as numbers
from equipoise.training import metrics as survival
from equipoise.training.metrics import tie_bounds
from equipoise.utils.errors import UsageError, nearest
from equipoise.utils.pytree import Params

__all__ = ["Objective", "balanced_class_weights", "objective_of"]


def objective_of(
    target: Target, *, class_weights: Tensor | None = None, absolute: bool = False
) -> Objective:
    """The usual one of this kind. ``absolute``: a regression by absolute instead of squared errors."""
    if target.kind == "regression":
        return RegressionObjective(target, absolute)
    if target.kind == "next-token":
        return NextTokenObjective(target)
    return (
        SurvivalObjective(target)
        if target.kind == "survival"
        else ClassificationObjective(target, class_weights)
    )


Metric = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(predictions, y, which rows count) of K models to one number for each."""


class Objective(ABC):
    """For models with outputs ``[..., rows, outputs]``, whatever their architecture."""

    default_metrics: ClassVar[tuple[str, ...]]
    """Scores of every evaluation, the headline first."""
    metrics: ClassVar[Mapping[str, Metric]]
    """Scores that are computed where they are asked for, and at the end of a run."""
    pad_label: ClassVar[float | None] = None
    """The ``y`` of rows that only fill a batch; ``None`` where it is enough that they weigh nothing."""
    closed_form: bool = False
    """Whether the loss is plain cross-entropy, whose gradient of linear models has a closed form."""

    def __init__(self, target: Target) -> None:
        self.target = target

    @property
    def metric_names(self) -> tuple[str, ...]:
        """All that this kind of target has, by name."""
        return (
            *self.default_metrics,
            *(name for name in self.metrics if name not in self.default_metrics),
        )

    def with_primary_metric(self, headline: str) -> tuple[str, ...]:
        """The scores of every evaluation with this one first."""
        if headline not in self.metric_names:
            raise UsageError(
                f"metric is '{headline}'{nearest(headline, self.metric_names)}: "
                f"{self.target.kind} has {', '.join(self.metric_names)}"
            )
        return (headline, *(name for name in self.default_metrics if name != headline))

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each row ``[..., B]``, whose mean over the batch is what SGD descends."""

    @abstractmethod
    def predict(self, outputs: Tensor) -> Tensor:
        """What :attr:`metrics` judge: logits, values in the target's unit, or risks."""

    @abstractmethod
    def constant_output(self, y: Tensor) -> Tensor:
        """The outputs of who knows a client's training targets ``y`` alone: the one to beat."""

    @abstractmethod
    def prediction_columns(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        """Predictions for people, by the names of their columns."""

    @abstractmethod
    def utility(self, name: str, value: Tensor) -> Tensor:
        """A score as a number in [0, 1], higher is better; where it is not defined, what chance gives."""

    def score(
        self, outputs: Tensor, y: Tensor, weight: Tensor | None, names: Iterable[str]
    ) -> Params:
        """These scores ``[K]`` of outputs ``[K, n, outputs]``; rows of no ``weight`` only fill up."""
        real = (
            torch.ones(outputs.shape[:2], dtype=torch.bool, device=y.device)
            if weight is None
            else weight > 0
        )
        predicted, marked = self.predict(outputs), self.mask_padding(y, real)
        return {
            name: weighted_mean(self.losses(outputs, marked), weight)
            if name == "loss"
            else self.metrics[name](predicted, y, real)
            for name in names
        }

    def mask_padding(self, y: Tensor, real: Tensor) -> Tensor:
        """``y`` with those of rows that only fill up made such that they change nothing."""
        if self.pad_label is None:
            return y
        return torch.where(
            real.reshape(*real.shape, *[1] * (y.dim() - real.dim())), y, self.pad_label
        )


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Over the last axis, by weights that sum to one."""
    if weight is None:
        return (
            values.sum(-1).double() / values.shape[-1]
            if values.dtype == torch.bool
            else values.mean(-1)
        )
    return (values * (weight if values.dtype == torch.bool else weight.to(values.dtype))).sum(-1)


CHANCE_LEVELS = {"auc": 0.5}


class ClassificationObjective(Objective):
    """One logit per class. ``weights``: what an error in each class counts, 1 on average over all rows."""

    default_metrics: ClassVar[tuple[str, ...]] = ("acc", "loss")
    metrics: ClassVar[Mapping[str, Metric]] = {
        "auc": classes.auc,
        "balanced_acc": classes.balanced_accuracy,
        "f1": classes.macro_f1,
        "average_precision": classes.average_precision,
        "ece": classes.expected_calibration_error,
    }

    def __init__(self, target: Target, weights: Tensor | None = None) -> None:
        super().__init__(target)
        self.weights, self.closed_form = weights, weights is None

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        weights = None if self.weights is None else self.weights.to(outputs)
        return F.cross_entropy(outputs.flatten(0, -2), y.flatten(), weights, reduction="none").view(
            y.shape
        )

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs

    def score(
        self, outputs: Tensor, y: Tensor, weight: Tensor | None, names: Iterable[str]
    ) -> Params:
        rest = [name for name in names if name != "acc"]
        found = super().score(outputs, y, weight, rest)
        return {
            name: weighted_mean(outputs.max(-1).indices == y, weight)
            if name == "acc"
            else found[name]
            for name in names
        }

    def constant_output(self, y: Tensor) -> Tensor:
        """Logs of the classes' shares, one row more than there are: no class is impossible."""
        counts = torch.bincount(y, minlength=len(self.target.classes)).double()
        return ((counts + 1 / len(counts)) / (counts.sum() + 1)).log()

    def prediction_columns(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        names, share = np.array(self.target.classes), outputs.double().softmax(-1).numpy()
        return {
            "predicted": names[share.argmax(-1)],
            **{f"p({name})": share[:, c] for c, name in enumerate(names)},
        }

    def utility(self, name: str, value: Tensor) -> Tensor:
        if name in ("loss", "ece"):
            return (-value).exp().nan_to_num(0.0)
        return value.nan_to_num(CHANCE_LEVELS.get(name, 0.0))


def balanced_class_weights(counts: Tensor) -> Tensor:
    """Weights that make every class count alike: rows / (classes x rows of the class), as usual.

    A class without rows weighs nothing."""
    counts = counts.double()
    there = counts > 0
    return torch.where(there, counts.sum() / (there.sum() * counts.clamp(min=1)), 0.0)


class RegressionObjective(Objective):
    """Squared or absolute error, in deviations of the target; scores are in the target's unit."""

    default_metrics: ClassVar[tuple[str, ...]] = ("rmse", "mae", "loss")
    metrics: ClassVar[Mapping[str, Metric]] = {
        "rmse": numbers.rmse,
        "mae": numbers.mae,
        "r2": numbers.r2,
    }

    def __init__(self, target: Target, absolute: bool = False) -> None:
        super().__init__(target)
        self.absolute = absolute

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        error = outputs.squeeze(-1) - self._standardised(y).to(outputs.dtype)
        return error.abs() if self.absolute else error.square()

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1).double() * self.target.scale + self.target.mean

    def constant_output(self, y: Tensor) -> Tensor:
        """The mean; the median where the error is absolute."""
        middle = y.double().median() if self.absolute else y.double().mean()
        return self._standardised(middle).reshape(1)

    def prediction_columns(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        return {"predicted": self.predict(outputs).numpy()}

    def utility(self, name: str, value: Tensor) -> Tensor:
        """1 for no error; for an error of one deviation of the target a half."""
        if name == "r2":
            return value.nan_to_num(0.0).clamp(0, 1)
        return 1 / (1 + (value if name == "loss" else value / self.target.scale))

    def _standardised(self, y: Tensor) -> Tensor:
        return (y - self.target.mean) / self.target.scale


class SurvivalObjective(Objective):
    """The likelihood compares a row with those of the same batch that are still at risk.

    A row whose time is minus infinity is at risk at no time: such rows fill batches up and change nothing.
    """

    default_metrics: ClassVar[tuple[str, ...]] = ("concordance", "loss")
    metrics: ClassVar[Mapping[str, Metric]] = {"concordance": survival.concordance}
    pad_label: ClassVar[float | None] = -torch.inf

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """event_i (log sum over time_j >= time_i of exp(h_j) - h_i), of each row."""
        h, time, event = outputs.squeeze(-1), y[..., 0], y[..., 1] > 0
        order = time.sort(stable=True, dim=-1, descending=True)
        last = tie_bounds(order.values)[1]  # who has the same time is at risk as well
        at_risk = h.gather(-1, order.indices).logcumsumexp(-1).gather(-1, last)
        own = at_risk.gather(-1, order.indices.argsort(-1))
        # Not a product: a row that does not count may have anything here.
        return torch.where(event & torch.isfinite(time), own - h, 0.0)

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1)

    def constant_output(self, y: Tensor) -> Tensor:
        """The same risk for everybody."""
        return y.new_zeros(1)

    def prediction_columns(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        return {"risk": outputs.squeeze(-1).double().numpy()}

    def utility(self, name: str, value: Tensor) -> Tensor:
        return (-value).exp() if name == "loss" else value.nan_to_num(0.5)


def token_accuracy(outputs: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """The mean share of a text's tokens that the model has right."""
    return (outputs[..., 1].double() * real).sum(-1) / real.sum(-1)


class NextTokenObjective(Objective):
    """Outputs ``[..., 2]``; a text counts as one row, however long it is. Perplexity is the exponential of the loss."""

    default_metrics: ClassVar[tuple[str, ...]] = ("acc", "loss")
    metrics: ClassVar[Mapping[str, Metric]] = {"acc": token_accuracy}

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs[..., 0]

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs

    def constant_output(self, y: Tensor) -> Tensor:
        """Any token for the next one."""
        return torch.stack([y.mean(), (-y.mean()).exp()])

    def prediction_columns(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        loss, right = outputs.double().unbind(-1)
        return {"loss": loss.numpy(), "right": right.numpy()}

    def utility(self, name: str, value: Tensor) -> Tensor:
        return (-value).exp() if name == "loss" else value.nan_to_num(0.0)
