"""Joint control: FedPolicy over a controller of training and aggregation (autopilot or PAGE)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.core import Task, TrainingConfig, option
from equipoise.methods.fedpolicy.fedpolicy import FedPolicy
from equipoise.utils.errors import UsageError


@dataclass(frozen=True)
class Joint(FedPolicy):
    """FedPolicy decides what clients install; its base how they train and how they are weighted."""

    name: ClassVar[str] = "joint"
    base: str = option("autopilot", "controller of training and aggregation: autopilot or page")
    base_options: str = option("", "options of that method, as 'name=value name=value'")

    def check(self, task: Task, training: TrainingConfig) -> None:
        """Check that the base decides how clients train.

        Raises:
            UsageError: If it does not, or if FedPolicy cannot sit on it.
        """
        if "configure_training" not in self.inner.overridden_hooks:
            raise UsageError(
                f"joint needs a base that decides how clients train, and '{self.base}' leaves it "
                "as configured: choose autopilot or page, or the method fedpolicy"
            )
        super().check(task, training)
