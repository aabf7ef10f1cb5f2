"""Kinds of target: what is minimised, how it is scored, what predictions look like."""

from __future__ import annotations

from torch import Tensor

from equipoise.data.target import Target
from equipoise.learners.targets.classes import Classes, balanced
from equipoise.learners.targets.numbers import Numbers
from equipoise.learners.targets.objective import Objective
from equipoise.learners.targets.survival import Survival
from equipoise.learners.targets.texts import Texts

__all__ = ["Objective", "balanced", "objective_of"]


def objective_of(target: Target, *, class_weights: Tensor | None = None, absolute: bool = False) -> Objective:
    """The usual one of this kind. ``absolute``: a regression by absolute instead of squared errors."""
    if target.kind == "regression":
        return Numbers(target, absolute)
    if target.kind == "next-token":
        return Texts(target)
    return Survival(target) if target.kind == "survival" else Classes(target, class_weights)
