"""Classification: cross-entropy on logits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from equipoise.core.trees import Params
from equipoise.data.target import Target
from equipoise.learners.scores import classes
from equipoise.learners.targets.objective import Metric, Objective, mean

CHANCE = {"auc": 0.5}


class Classes(Objective):
    """One logit per class. ``weights``: what an error in each class counts, 1 on average over all rows."""

    usual: ClassVar[tuple[str, ...]] = ("acc", "loss")
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
        return F.cross_entropy(outputs.flatten(0, -2), y.flatten(), weights, reduction="none").view(y.shape)

    def predicted(self, outputs: Tensor) -> Tensor:
        return outputs

    def score(self, outputs: Tensor, y: Tensor, weight: Tensor | None, names: Iterable[str]) -> Params:
        rest = [name for name in names if name != "acc"]
        found = super().score(outputs, y, weight, rest)
        return {name: mean(outputs.max(-1).indices == y, weight) if name == "acc" else found[name] for name in names}

    def constant(self, y: Tensor) -> Tensor:
        """Logs of the classes' shares, one row more than there are: no class is impossible."""
        counts = torch.bincount(y, minlength=len(self.target.classes)).double()
        return ((counts + 1 / len(counts)) / (counts.sum() + 1)).log()

    def columns(self, outputs: Tensor) -> dict[str, NDArray[Any]]:
        names, share = np.array(self.target.classes), outputs.double().softmax(-1).numpy()
        return {"predicted": names[share.argmax(-1)], **{f"p({name})": share[:, c] for c, name in enumerate(names)}}

    def merit(self, name: str, value: Tensor) -> Tensor:
        if name in ("loss", "ece"):
            return (-value).exp().nan_to_num(0.0)
        return value.nan_to_num(CHANCE.get(name, 0.0))


def balanced(counts: Tensor) -> Tensor:
    """Weights that make every class count alike: rows / (classes x rows of the class), as usual.

    A class without rows weighs nothing."""
    counts = counts.double()
    there = counts > 0
    return torch.where(there, counts.sum() / (there.sum() * counts.clamp(min=1)), 0.0)
