"""Training objectives: loss, metrics and predictions for each kind of target."""

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
from equipoise.training import metrics as metric_functions
from equipoise.utils.errors import UsageError, did_you_mean
from equipoise.utils.pytree import Params

__all__ = ["Objective", "balanced_class_weights", "objective_of"]


Metric = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(predictions, y, is_real) of K models, each `[K, n, ...]`, to one number per model `[K]`."""

CHANCE_LEVELS = {"auc": 0.5}
"""Metrics whose value at random guessing is not 0, used where they are undefined."""


def objective_of(
    target: Target, *, class_weights: Tensor | None = None, absolute: bool = False
) -> Objective:
    """Return the default objective of a target.

    Args:
        target: Kind, classes and scale of the target.
        class_weights: Weight of each class in the loss, `[C]`. Only for classification.
        absolute: Use the absolute instead of the squared error. Only for regression.
    """
    if target.kind == "regression":
        return RegressionObjective(target, absolute)
    if target.kind == "next-token":
        return NextTokenObjective(target)
    return (
        SurvivalObjective(target)
        if target.kind == "survival"
        else ClassificationObjective(target, class_weights)
    )


class Objective(ABC):
    """Loss, metrics and predictions of models with outputs `[..., n, outputs]`."""

    default_metrics: ClassVar[tuple[str, ...]]
    """Metrics of every evaluation, the primary metric first."""
    metrics: ClassVar[Mapping[str, Metric]]
    """All metrics except `loss`; computed on request and at the end of a run."""
    pad_label: ClassVar[float | None] = None
    """Target of padding rows, if zero weight alone is not enough to ignore them."""
    closed_form: bool = False
    """Whether the loss is unweighted cross-entropy (see `batched_sgd.PaddedLinear`)."""

    def __init__(self, target: Target) -> None:
        """Create the objective of a target."""
        self.target = target

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of all metrics of this objective."""
        return (
            *self.default_metrics,
            *(name for name in self.metrics if name not in self.default_metrics),
        )

    def with_primary_metric(self, primary: str) -> tuple[str, ...]:
        """Return the default metrics with another primary metric first.

        Args:
            primary: Name of the metric.

        Raises:
            UsageError: If the objective does not have this metric.
        """
        if primary not in self.metric_names:
            raise UsageError(
                f"metric is '{primary}'{did_you_mean(primary, self.metric_names)}: "
                f"{self.target.kind} has {', '.join(self.metric_names)}"
            )
        return (primary, *(name for name in self.default_metrics if name != primary))

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Compute the loss of each row, `[..., B]`. SGD minimises its mean over the batch."""

    @abstractmethod
    def predict(self, outputs: Tensor) -> Tensor:
        """Convert outputs to the input of the metrics: logits, values in target units, or risks."""

    @abstractmethod
    def constant_output(self, y: Tensor) -> Tensor:
        """Return the outputs of the best constant prediction for training targets `y`."""

    @abstractmethod
    def prediction_columns(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        """Convert outputs `[n, outputs]` to prediction columns `[n]` by name, for export."""

    @abstractmethod
    def utility(self, name: str, value: Tensor) -> Tensor:
        """Convert a metric to a utility in [0, 1], higher is better.

        Args:
            name: Name of the metric.
            value: Its values. Undefined values are replaced by the chance level.

        Returns:
            The utility, in the shape of the metric.
        """

    def score(
        self, outputs: Tensor, y: Tensor, weight: Tensor | None, names: Iterable[str]
    ) -> Params:
        """Compute metrics of K models.

        Args:
            outputs: Outputs, `[K, n, outputs]`.
            y: Targets, `[K, n, ...]`.
            weight: Weights of the rows, `[K, n]`; padding has weight 0. None if all rows count.
            names: Names of the metrics.

        Returns:
            Values `[K]` by name.
        """
        if weight is None:
            is_real = torch.ones(outputs.shape[:2], dtype=torch.bool, device=y.device)
        else:
            is_real = weight > 0
        predictions = self.predict(outputs)
        masked = self.mask_padding(y, is_real)
        return {
            name: weighted_mean(self.losses(outputs, masked), weight)
            if name == "loss"
            else self.metrics[name](predictions, y, is_real)
            for name in names
        }

    def mask_padding(self, y: Tensor, is_real: Tensor) -> Tensor:
        """Replace the targets of padding rows by `pad_label`, if there is one."""
        if self.pad_label is None:
            return y
        mask = is_real.reshape(*is_real.shape, *[1] * (y.dim() - is_real.dim()))
        return torch.where(mask, y, self.pad_label)


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Average over the last axis.

    Args:
        values: Values or booleans, `[..., n]`.
        weight: Weights that sum to 1, `[..., n]`. None for equal weights.

    Returns:
        Means, `[...]`.
    """
    is_bool = values.dtype == torch.bool
    if weight is not None:
        return (values * (weight if is_bool else weight.to(values.dtype))).sum(-1)
    if is_bool:
        return values.sum(-1).double() / values.shape[-1]
    return values.mean(-1)


class ClassificationObjective(Objective):
    """Cross-entropy with one logit per class, optionally weighted by class."""

    default_metrics: ClassVar[tuple[str, ...]] = ("acc", "loss")
    metrics: ClassVar[Mapping[str, Metric]] = {
        "auc": metric_functions.auc,
        "balanced_acc": metric_functions.balanced_accuracy,
        "f1": metric_functions.macro_f1,
        "average_precision": metric_functions.average_precision,
        "ece": metric_functions.expected_calibration_error,
    }

    def __init__(self, target: Target, weights: Tensor | None = None) -> None:
        """Create the objective.

        Args:
            target: The classes.
            weights: Weight of each class in the loss, `[C]`, 1 on average over all rows.
        """
        super().__init__(target)
        self.weights = weights
        self.closed_form = weights is None

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Compute the cross-entropy of each row."""
        weights = None if self.weights is None else self.weights.to(outputs)
        return F.cross_entropy(outputs.flatten(0, -2), y.flatten(), weights, reduction="none").view(
            y.shape
        )

    def predict(self, outputs: Tensor) -> Tensor:
        """Return the logits."""
        return outputs

    def score(
        self, outputs: Tensor, y: Tensor, weight: Tensor | None, names: Iterable[str]
    ) -> Params:
        """Compute metrics; accuracy without probabilities, because it is the most frequent one."""
        rest = [name for name in names if name != "acc"]
        scores = super().score(outputs, y, weight, rest)
        return {
            name: weighted_mean(outputs.max(-1).indices == y, weight)
            if name == "acc"
            else scores[name]
            for name in names
        }

    def constant_output(self, y: Tensor) -> Tensor:
        """Return the log frequencies with one pseudo-row spread over all classes."""
        counts = torch.bincount(y, minlength=len(self.target.classes)).double()
        return ((counts + 1 / len(counts)) / (counts.sum() + 1)).log()

    def prediction_columns(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        """Return the predicted class and the probability of each class."""
        names = np.array(self.target.classes)
        probability = outputs.double().softmax(-1).numpy()
        return {
            "predicted": names[probability.argmax(-1)],
            **{f"p({name})": probability[:, c] for c, name in enumerate(names)},
        }

    def utility(self, name: str, value: Tensor) -> Tensor:
        """Return exp(-value) of losses, other metrics as they are."""
        if name in ("loss", "ece"):
            return (-value).exp().nan_to_num(0.0)
        return value.nan_to_num(CHANCE_LEVELS.get(name, 0.0))


def balanced_class_weights(counts: Tensor) -> Tensor:
    """Compute class weights `n / (C * n_c)`, so that every class has the same total weight.

    Args:
        counts: Rows of each class, `[C]`.

    Returns:
        Weights `[C]`, float64; 0 for classes without rows. C counts only classes with rows.
    """
    counts = counts.double()
    present = counts > 0
    return torch.where(present, counts.sum() / (present.sum() * counts.clamp(min=1)), 0.0)


class RegressionObjective(Objective):
    """Squared or absolute error of the standardised target; metrics are in target units."""

    default_metrics: ClassVar[tuple[str, ...]] = ("rmse", "mae", "loss")
    metrics: ClassVar[Mapping[str, Metric]] = {
        "rmse": metric_functions.rmse,
        "mae": metric_functions.mae,
        "r2": metric_functions.r2,
    }

    def __init__(self, target: Target, absolute: bool = False) -> None:
        """Create the objective.

        Args:
            target: Mean and scale of the target.
            absolute: Use the absolute instead of the squared error.
        """
        super().__init__(target)
        self.absolute = absolute

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Compute the error of each row in standard deviations."""
        error = outputs.squeeze(-1) - self._standardise(y).to(outputs.dtype)
        return error.abs() if self.absolute else error.square()

    def predict(self, outputs: Tensor) -> Tensor:
        """Return the values in target units."""
        return outputs.squeeze(-1).double() * self.target.scale + self.target.mean

    def constant_output(self, y: Tensor) -> Tensor:
        """Return the standardised mean, or the median for the absolute error."""
        middle = y.double().median() if self.absolute else y.double().mean()
        return self._standardise(middle).reshape(1)

    def prediction_columns(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        """Return the predicted values."""
        return {"predicted": self.predict(outputs).numpy()}

    def utility(self, name: str, value: Tensor) -> Tensor:
        """Return `1 / (1 + error / scale)`; R² is clamped to [0, 1]."""
        if name == "r2":
            return value.nan_to_num(0.0).clamp(0, 1)
        return 1 / (1 + (value if name == "loss" else value / self.target.scale))

    def _standardise(self, y: Tensor) -> Tensor:
        """Return the target in standard deviations from its mean."""
        return (y - self.target.mean) / self.target.scale


class SurvivalObjective(Objective):
    """Cox partial likelihood (Breslow) over the rows of a batch.

    Padding rows have time minus infinity: they are never at risk and change nothing.
    """

    default_metrics: ClassVar[tuple[str, ...]] = ("concordance", "loss")
    metrics: ClassVar[Mapping[str, Metric]] = {"concordance": metric_functions.concordance}
    pad_label: ClassVar[float | None] = -torch.inf

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Compute `event_i * (log sum_{j: time_j >= time_i} exp(h_j) - h_i)` of each row."""
        h = outputs.squeeze(-1)
        time = y[..., 0]
        event = y[..., 1] > 0
        order = time.sort(stable=True, dim=-1, descending=True)
        last = metric_functions.tie_bounds(order.values)[1]  # rows with equal times are at risk
        at_risk = h.gather(-1, order.indices).logcumsumexp(-1).gather(-1, last)
        log_risk = at_risk.gather(-1, order.indices.argsort(-1))
        # Not a product: rows that do not count may hold inf or NaN here.
        return torch.where(event & torch.isfinite(time), log_risk - h, 0.0)

    def predict(self, outputs: Tensor) -> Tensor:
        """Return the log risks."""
        return outputs.squeeze(-1)

    def constant_output(self, y: Tensor) -> Tensor:
        """Return risk 0 for every row."""
        return y.new_zeros(1)

    def prediction_columns(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        """Return the log risks."""
        return {"risk": outputs.squeeze(-1).double().numpy()}

    def utility(self, name: str, value: Tensor) -> Tensor:
        """Return exp(-loss), or the concordance."""
        return (-value).exp() if name == "loss" else value.nan_to_num(0.5)


def token_accuracy(outputs: Tensor, y: Tensor, is_real: Tensor) -> Tensor:
    """Compute the mean over texts of the share of correctly predicted tokens, `[K]`.

    Args:
        outputs: Loss and accuracy of each text `[K, n, 2]`.
        y: Targets `[K, n]`, which are not needed: texts are their own targets.
        is_real: Mask `[K, n]` of the texts that are no padding.
    """
    return (outputs[..., 1].double() * is_real).sum(-1) / is_real.sum(-1)


class NextTokenObjective(Objective):
    """Next-token prediction. Outputs `[..., 2]` hold the mean loss and accuracy of each text.

    Every text counts as one row, whatever its length. Perplexity is exp(loss).
    """

    default_metrics: ClassVar[tuple[str, ...]] = ("acc", "loss")
    metrics: ClassVar[Mapping[str, Metric]] = {"acc": token_accuracy}

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each text."""
        return outputs[..., 0]

    def predict(self, outputs: Tensor) -> Tensor:
        """Return the outputs."""
        return outputs

    def constant_output(self, y: Tensor) -> Tensor:
        """Return loss and accuracy of a uniform prediction; `y` holds log vocabulary sizes."""
        return torch.stack([y.mean(), (-y.mean()).exp()])

    def prediction_columns(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        """Return loss and token accuracy of each text."""
        loss, accuracy = outputs.double().unbind(-1)
        return {"loss": loss.numpy(), "right": accuracy.numpy()}

    def utility(self, name: str, value: Tensor) -> Tensor:
        """Return exp(-loss), or the accuracy."""
        return (-value).exp() if name == "loss" else value.nan_to_num(0.0)
