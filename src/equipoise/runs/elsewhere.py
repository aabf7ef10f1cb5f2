"""Runs whose clients are elsewhere: options that only a simulation can keep are refused."""

from __future__ import annotations

from equipoise.core.errors import UsageError
from equipoise.settings.config import RunSettings


def refuse_simulated(settings: RunSettings) -> None:
    """The first option that such a run cannot keep, with the reason."""
    run = settings.run
    if run.holdout_clients:
        raise UsageError("holdout_clients is for simulations: clients that are elsewhere cannot be held out")
    if settings.timing.simulated or run.selection != "uniform":
        raise UsageError(
            "devices, semi, deadline, over_select, until and select are for simulations: clients that are elsewhere "
            "have a clock of their own"
        )
    if run.local_baseline:
        raise UsageError("beside_local is for simulations: clients that are elsewhere train with --method local")
    if run.attack:
        raise UsageError("attack is for simulations: clients that are elsewhere are what they are")
