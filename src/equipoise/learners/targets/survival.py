"""Survival: one output, the logarithm of a row's hazard against others'; Cox's partial likelihood.

D. R. Cox, Regression models and life-tables, 1972; ties as N. Breslow has them, 1974.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.learners.scores import survival
from equipoise.learners.scores.ties import runs_of_equals
from equipoise.learners.targets.objective import Metric, Objective


class Survival(Objective):
    """The likelihood compares a row with those of the same batch that are still at risk.

    A row whose time is minus infinity is at risk at no time: such rows fill batches up and change nothing.
    """

    usual: ClassVar[tuple[str, ...]] = ("concordance", "loss")
    metrics: ClassVar[Mapping[str, Metric]] = {"concordance": survival.concordance}
    filler: ClassVar[float | None] = -torch.inf

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """event_i (log sum over time_j >= time_i of exp(h_j) - h_i), of each row."""
        h, time, event = outputs.squeeze(-1), y[..., 0], y[..., 1] > 0
        order = time.sort(stable=True, dim=-1, descending=True)
        last = runs_of_equals(order.values)[1]  # who has the same time is at risk as well
        at_risk = h.gather(-1, order.indices).logcumsumexp(-1).gather(-1, last)
        own = at_risk.gather(-1, order.indices.argsort(-1))
        # Not a product: a row that does not count may have anything here.
        return torch.where(event & torch.isfinite(time), own - h, 0.0)

    def predicted(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1)

    def constant(self, y: Tensor) -> Tensor:
        """The same risk for everybody."""
        return y.new_zeros(1)

    def columns(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        return {"risk": outputs.squeeze(-1).double().numpy()}

    def merit(self, name: str, value: Tensor) -> Tensor:
        return (-value).exp() if name == "loss" else value.nan_to_num(0.5)
