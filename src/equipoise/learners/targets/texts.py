"""Next tokens of texts: the model itself gives the mean loss of each text, and the share of tokens it has right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.learners.targets.objective import Metric, Objective


def right(outputs: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """The mean share of a text's tokens that the model has right."""
    return (outputs[..., 1].double() * real).sum(-1) / real.sum(-1)


class Texts(Objective):
    """Outputs ``[..., 2]``; a text counts as one row, however long it is. Perplexity is the exponential of the loss."""

    usual: ClassVar[tuple[str, ...]] = ("acc", "loss")
    metrics: ClassVar[Mapping[str, Metric]] = {"acc": right}

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs[..., 0]

    def predicted(self, outputs: Tensor) -> Tensor:
        return outputs

    def constant(self, y: Tensor) -> Tensor:
        """Any token for the next one."""
        return torch.stack([y.mean(), (-y.mean()).exp()])

    def columns(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        loss, right = outputs.double().unbind(-1)
        return {"loss": loss.numpy(), "right": right.numpy()}

    def merit(self, name: str, value: Tensor) -> Tensor:
        return (-value).exp() if name == "loss" else value.nan_to_num(0.0)
