"""Any method whose clients tell the training loss of the model that they receive, for policies of decision 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from equipoise.core import (
    Client,
    ClientUpdate,
    Method,
    MethodWrapper,
    SelectionPolicy,
    State,
    ValueRange,
)
from equipoise.core.report_validation import LOSS
from equipoise.simulation.client_selector import TOLD


def with_loss_reporting(method: Method, selection: SelectionPolicy) -> Method:
    """The method with clients that tell what the policy asks for; itself where it asks for nothing."""
    return LossReporting(method) if selection.needs_client_loss else method


@dataclass(frozen=True)
class LossReporting(MethodWrapper):
    """One number more in each upload: it is billed, and it must lie in its range."""

    @property
    def report_ranges(self) -> Mapping[str, ValueRange]:  # type: ignore[override]
        return {**super().report_ranges, TOLD: LOSS}

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        up, state = super().upload(client)
        return replace(
            up, metrics={**up.metrics, TOLD: client.evaluate(client.start, "train")["loss"]}
        ), state
