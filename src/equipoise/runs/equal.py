"""Comparisons at equal compute: every method gets as many rounds as the gradient steps of the first one pay for."""

from __future__ import annotations

from typing import Any

from equipoise.core.errors import UsageError
from equipoise.runs.running import build_task
from equipoise.runtime.choose import select_executor
from equipoise.runtime.round import RoundLoopConfig, FederatedSimulation
from equipoise.settings.config import RunSettings
from equipoise.settings.given import settings_of


def with_equal_steps(cells: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The same methods and options, with rounds such that all take as many gradient steps, up to one round.

    What a round costs is counted in the first one; a method whose agents choose epochs later may take more or fewer.
    """
    settings = {label: settings_of({"method": label, **given}) for label, given in cells.items()}
    costs = {label: steps_of_a_round(one) for label, one in settings.items()}
    first = next(iter(cells))
    budget = settings[first].run.rounds * costs[first]
    return {label: {**given, "rounds": max(1, round(budget / costs[label]))} for label, given in cells.items()}


def steps_of_a_round(settings: RunSettings) -> int:
    """Gradient steps of all clients in the first round."""
    run, task = settings.run, build_task(settings)
    numbers = settings.training.at(1, run.rounds)
    schedule = RoundLoopConfig(run.rounds, run.seed, run.participation, "stacked", run.rounds, keep_models=False)
    make = select_executor(task, numbers, task.num_clients).make if run.executor == "auto" and task.executor_depends_on_model else None
    taken = FederatedSimulation(settings.wrapped_method, task, settings.training, schedule, make).run_round().steps
    if not taken:
        raise UsageError(f"equal steps need methods that tell their gradient steps, and {run.method} does not")
    return taken
