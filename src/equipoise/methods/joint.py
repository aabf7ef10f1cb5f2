"""Joint control: a controller of training and aggregation (decisions 1 and 3) and FedPolicy at decision 4, at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.core import Task, TrainingConfig, option
from equipoise.methods.fedpolicy.fedpolicy import FedPolicy
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class Joint(FedPolicy):
    """Both sides of a round are decided: how clients train and are weighed, and what each gets back."""

    name: ClassVar[str] = "joint"
    base: str = option("autopilot", "controller of training and aggregation: autopilot or page")

    def check(self, task: Task, training: TrainingConfig) -> None:
        if "configure_training" not in self.inner.overridden_hooks:
            raise UsageError(
                f"joint needs a base that decides how clients train, and '{self.base}' leaves it as configured: "
                "choose autopilot or page, or the method fedpolicy"
            )
        super().check(task, training)
