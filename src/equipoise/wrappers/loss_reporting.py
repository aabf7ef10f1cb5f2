"""Let clients report the training loss of the received model, for client selection policies."""

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
from equipoise.simulation.client_selector import LOSS_METRIC


def with_loss_reporting(method: Method, selection: SelectionPolicy) -> Method:
    """Wrap a method so that its clients report what the selection policy needs.

    Args:
        method: Any method.
        selection: The policy that selects clients.

    Returns:
        The wrapped method, or `method` itself if the policy needs no loss.
    """
    return LossReporting(method) if selection.needs_client_loss else method


@dataclass(frozen=True)
class LossReporting(MethodWrapper):
    """Add one metric to each upload. Its bytes are counted and its range is validated."""

    @property
    def report_ranges(self) -> Mapping[str, ValueRange]:  # type: ignore[override]
        """Return the ranges of the inner method and that of the loss."""
        return {**super().report_ranges, LOSS_METRIC: LOSS}

    def upload(self, client: Client) -> tuple[ClientUpdate, State]:
        """Add the training loss of the received model."""
        update, state = super().upload(client)
        loss = client.evaluate(client.start, "train")["loss"]
        return replace(update, metrics={**update.metrics, LOSS_METRIC: loss}), state
