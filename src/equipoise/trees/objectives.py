"""Gradients and hessians of each kind of target, and the constant that boosting starts from."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from equipoise.trees.arrays import (
    COARSEST_UNIT,
    MAX_GRADIENT,
    MAX_INT32,
    QUANTUM,
    Floats,
    Ints,
    SumsType,
    Targets,
    Units,
)

MAX_LOG_RISK = 30.0
"""Largest absolute margin whose exponential is taken (survival)."""


class BoostingObjective(ABC):
    """What boosting needs of a loss."""

    num_margins: int = 1
    """Trees of an iteration: one, or one per class if there are more than two."""

    max_gradient: float
    """Largest absolute gradient of a row."""
    max_hessian: float
    """Largest hessian of a row."""

    @abstractmethod
    def target_sums(self, y: Targets) -> Floats:
        """Return sums over the rows of a client from which `base_margins` follows `[S]`."""

    @abstractmethod
    def base_margins(self, sums: Floats) -> Floats:
        """Return the best constant margins `[C]` from the sums over all clients `[S]`."""

    @abstractmethod
    def gradients(
        self, y: Targets, margins: Floats, start: Ints, size: Ints, unit: float = QUANTUM
    ) -> tuple[Units, Units]:
        """Compute gradients and hessians as whole numbers of a unit.

        Args:
            y: Targets of all rows `[n, ...]`.
            margins: Margins of all rows `[C, n]`.
            start: First row of each client `[K]`.
            size: Rows of each client `[K]`.
            unit: The unit, see `sums_unit`.

        Returns:
            Gradients and hessians `[C, n]`; only rows of these clients are defined.
        """

    @abstractmethod
    def losses(self, y: Targets, margins: Floats, start: Ints, size: Ints) -> Floats:
        """Compute the loss of each row `[n]`; only rows of these clients are defined."""

    @abstractmethod
    def outputs(self, margins: Floats) -> Floats:
        """Convert margins `[C, n]` to outputs of a network for the same target `[n, outputs]`."""


class ClassificationBoosting(BoostingObjective):
    """Cross-entropy; the margin of two classes is the log odds of the second."""

    def __init__(self, num_classes: int, class_weights: Floats | None = None) -> None:
        """Create the objective.

        Args:
            num_classes: Number of classes.
            class_weights: Weight of each class in the loss `[num_classes]`; None for 1.
        """
        self.num_classes = num_classes
        self.num_margins = 1 if num_classes == 2 else num_classes
        self.class_weights = np.ones(num_classes) if class_weights is None else class_weights
        self.max_gradient = float(self.class_weights.max())
        self.max_hessian = 0.25 * self.max_gradient  # p (1 - p)

    def target_sums(self, y: Targets) -> Floats:
        """Return the rows of each class."""
        return np.bincount(y.astype(np.int64), minlength=self.num_classes).astype(np.float64)

    def base_margins(self, sums: Floats) -> Floats:
        """Return log odds, or log shares, with one pseudo-row spread over all classes."""
        weighted = (sums + 1.0 / self.num_classes) * self.class_weights
        logs = np.log(np.maximum(weighted, QUANTUM) / weighted.sum())
        if self.num_margins == 1:
            return np.asarray(logs[1:] - logs[:1])
        return np.asarray(logs)

    def gradients(
        self, y: Targets, margins: Floats, start: Ints, size: Ints, unit: float = QUANTUM
    ) -> tuple[Units, Units]:
        """Return w (p - [y = c]) and w p (1 - p)."""
        from equipoise.trees.histograms import logistic_gradients

        gradient = np.zeros(margins.shape, np.int32)
        hessian = np.zeros(margins.shape, np.int32)
        logistic_gradients(y, self.class_weights, start, size, margins, unit, gradient, hessian)
        return gradient, hessian

    def losses(self, y: Targets, margins: Floats, start: Ints, size: Ints) -> Floats:
        """Return the weighted cross-entropy."""
        logits = self.outputs(margins)
        highest = logits.max(1, keepdims=True)
        log_total = highest[:, 0] + np.log(np.exp(logits - highest).sum(1))
        own = np.take_along_axis(logits, y[:, None], 1)[:, 0]
        return np.asarray(self.class_weights[y] * (log_total - own))

    def outputs(self, margins: Floats) -> Floats:
        """Return logits: 0 and the log odds, or one margin per class."""
        if self.num_margins == 1:
            return np.stack([np.zeros_like(margins[0]), margins[0]], axis=1)
        return np.ascontiguousarray(margins.T)


class RegressionBoosting(BoostingObjective):
    """Squared error of the standardised target, or a smooth absolute error.

    The absolute error has no second derivative, so that sqrt(1 + r^2) - 1 takes its place.
    """

    def __init__(self, mean: float, scale: float, absolute: bool = False) -> None:
        """Create the objective.

        Args:
            mean: Mean of the target.
            scale: Standard deviation of the target.
            absolute: Use the smooth absolute instead of the squared error.
        """
        self.mean = mean
        self.scale = scale
        self.absolute = absolute
        self.max_gradient = 1.0 if absolute else MAX_GRADIENT
        self.max_hessian = 1.0

    def target_sums(self, y: Targets) -> Floats:
        """Return the number of rows and the sum of standardised targets."""
        return np.array([len(y), quantise(self._standardised(y)).sum()])

    def base_margins(self, sums: Floats) -> Floats:
        """Return the mean."""
        return np.array([sums[1] / max(sums[0], 1.0)])

    def gradients(
        self, y: Targets, margins: Floats, start: Ints, size: Ints, unit: float = QUANTUM
    ) -> tuple[Units, Units]:
        """Return r and 1, or r / sqrt(1 + r^2) and (1 + r^2)^(-3/2), with r = margin - target."""
        residual = margins - self._standardised(y)[None]
        if not self.absolute:
            return to_units(residual, unit), to_units(np.ones_like(residual), unit)
        curve = np.sqrt(1.0 + residual**2)
        return to_units(residual / curve, unit), to_units(curve**-3, unit)

    def losses(self, y: Targets, margins: Floats, start: Ints, size: Ints) -> Floats:
        """Return the squared or the absolute error, in standard deviations."""
        residual = margins[0] - self._standardised(y)
        return np.asarray(np.abs(residual) if self.absolute else residual**2)

    def outputs(self, margins: Floats) -> Floats:
        """Return the standardised predictions."""
        return np.ascontiguousarray(margins.T)

    def _standardised(self, y: Targets) -> Floats:
        return (y - self.mean) / self.scale


class SurvivalBoosting(BoostingObjective):
    """Cox partial likelihood (Breslow), stratified by client: risk sets never leave a client."""

    max_gradient = MAX_GRADIENT
    max_hessian = MAX_GRADIENT

    def target_sums(self, y: Targets) -> Floats:
        """Return the number of rows."""
        return np.array([float(len(y))])

    def base_margins(self, sums: Floats) -> Floats:
        """Return 0: a constant risk cancels."""
        return np.zeros(1)

    def gradients(
        self, y: Targets, margins: Floats, start: Ints, size: Ints, unit: float = QUANTUM
    ) -> tuple[Units, Units]:
        """Return e_i A_i - d_i and e_i A_i - e_i^2 B_i.

        e is the exponential of the margin, d the event, A_i and B_i the sums over events at or
        before the time of row i of 1 / R and 1 / R^2, and R the sum of e over the rows at risk.
        """
        gradient = np.zeros_like(margins)
        hessian = np.zeros_like(margins)
        for first, count in zip(start.tolist(), size.tolist(), strict=True):
            rows = slice(first, first + count)
            g, h = cox_gradients(y[rows, 0], y[rows, 1], margins[0, rows])
            gradient[0, rows] = g
            hessian[0, rows] = h
        return to_units(gradient, unit), to_units(hessian, unit)

    def losses(self, y: Targets, margins: Floats, start: Ints, size: Ints) -> Floats:
        """Return `event_i (log R_i - margin_i)` of each row, with the risk set of its client."""
        losses = np.zeros(margins.shape[1])
        for first, count in zip(start.tolist(), size.tolist(), strict=True):
            rows = slice(first, first + count)
            losses[rows] = _cox_losses(y[rows, 0], y[rows, 1], margins[0, rows])
        return losses

    def outputs(self, margins: Floats) -> Floats:
        """Return the log risks."""
        return np.ascontiguousarray(margins.T)


def cox_gradients(time: Floats, event: Floats, log_risk: Floats) -> tuple[Floats, Floats]:
    """Compute gradient and diagonal hessian of the negative log partial likelihood (Breslow).

    Args:
        time: Times `[n]`.
        event: 1 if the event was seen, 0 if the row is censored `[n]`.
        log_risk: Log risks `[n]`.

    Returns:
        Gradient and hessian `[n]`.
    """
    order = np.argsort(time, kind="stable")
    ordered = time[order]
    risk = np.exp(np.clip(log_risk[order], -MAX_LOG_RISK, MAX_LOG_RISK))
    first_of_tie = np.searchsorted(ordered, ordered, "left")
    last_of_tie = np.searchsorted(ordered, ordered, "right") - 1
    at_risk = np.cumsum(risk[::-1])[::-1][first_of_tie]
    is_event = event[order] > 0
    inverse = np.cumsum(np.where(is_event, 1.0 / at_risk, 0.0))[last_of_tie]
    inverse_sq = np.cumsum(np.where(is_event, 1.0 / at_risk**2, 0.0))[last_of_tie]
    gradient = np.empty_like(risk)
    hessian = np.empty_like(risk)
    gradient[order] = risk * inverse - is_event
    hessian[order] = np.maximum(risk * inverse - risk**2 * inverse_sq, 0.0)
    return gradient, hessian


def _cox_losses(time: Floats, event: Floats, log_risk: Floats) -> Floats:
    """Return the terms of the negative log partial likelihood `[n]`."""
    order = np.argsort(time, kind="stable")
    ordered = time[order]
    margin = np.clip(log_risk[order], -MAX_LOG_RISK, MAX_LOG_RISK)
    first_of_tie = np.searchsorted(ordered, ordered, "left")
    at_risk = np.cumsum(np.exp(margin)[::-1])[::-1][first_of_tie]
    losses = np.empty_like(margin)
    losses[order] = np.where(event[order] > 0, np.log(at_risk) - margin, 0.0)
    return losses


def to_units(values: Floats, unit: float = QUANTUM) -> Units:
    """Round to whole numbers of a unit within [-64, 64], so that sums are exact in any order."""
    clipped = np.clip(values, -MAX_GRADIENT, MAX_GRADIENT)
    return np.asarray(np.rint(clipped / unit), np.int32)


def sums_unit(max_sum: float) -> float:
    """Return the unit of gradients and hessians.

    It is the finest one of 2^-20 to 2^-16 in which a client's sums fit into 32 bits, which halves
    what is sent; and 2^-20, with sums of 64 bits, if there is none.

    Args:
        max_sum: Bound of a client's sums; 0 if it is not known.
    """
    unit = QUANTUM
    while max_sum / unit > MAX_INT32:
        unit *= 2
    return unit if unit <= COARSEST_UNIT else QUANTUM


def sums_type(max_sum: float) -> SumsType:
    """Return the type of a client's sums in units of `sums_unit`."""
    return np.int32 if 0 < max_sum <= MAX_INT32 * sums_unit(max_sum) else np.int64


def quantise(values: Floats) -> Floats:
    """Round to multiples of 2^-20 within [-64, 64]."""
    return np.asarray(to_units(values) * QUANTUM)


def rows_of(start: Ints, size: Ints) -> Ints:
    """Return the rows of clients, one client after another `[m]`."""
    first = np.cumsum(size) - size
    return np.repeat(start - first, size) + np.arange(int(size.sum()))
