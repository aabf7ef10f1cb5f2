"""Choose the model of tables by validation: linear, a perceptron or trees.

Each candidate runs to its end in a temporary folder. What counts is the loss of each validation row
under the model that its client uses. The simplest candidate within one standard error of the best
one is the model of the run, see `row_outputs.simplest_within_error`. Test rows are not used.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from equipoise.experiment.row_outputs import (
    PERSONAL,
    Floats,
    RowOutputs,
    row_losses,
    simplest_within_error,
)
from equipoise.experiment.runner import OnMessage, build_task, run
from equipoise.methods import find_method
from equipoise.models import TREES
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig, with_model_defaults
from equipoise.settings.resources import ResourceConfig
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.errors import UsageError

CANDIDATES = ("linear", "mlp", TREES)
"""Models from the simplest on."""
TREES_METHOD = "fedtrees"
NETWORK_METHOD = "autopilot"
"""Method of networks if the run asks for one that grows trees."""

RunTrial = Callable[[ExperimentConfig], Floats]
"""From the settings of a candidate to the losses of the validation rows; empty without rows."""


def with_model(settings: ExperimentConfig, model: str) -> ExperimentConfig:
    """Return the settings with one of the candidates.

    Args:
        settings: Settings whose model is `auto`.
        model: The candidate. Trees have the method `fedtrees`, networks the method of the run.
    """
    method = settings.method
    if model == TREES:
        method = find_method(TREES_METHOD)()
    elif method.name == TREES_METHOD:
        method = find_method(NETWORK_METHOD)()
    if method.name == settings.method.name:
        method = settings.method
    changed = replace(settings.run, model=model, method=method.name)
    changed = with_model_defaults(changed, method, settings.task_spec, settings.task_config)
    return replace(settings, run=changed, method=method)


def choose_model(
    settings: ExperimentConfig,
    on_message: OnMessage | None = None,
    resources: ResourceConfig | None = None,
    run_trial: RunTrial | None = None,
) -> ExperimentConfig:
    """Run every candidate and return the settings of the chosen one.

    Args:
        settings: Settings whose model is `auto`.
        on_message: Called with the losses of all candidates and the time they took.
        resources: Resource limits.
        run_trial: Computes the losses of a candidate; by default it is run to its end.

    Returns:
        Settings with the model and method of the chosen candidate.

    Raises:
        UsageError: If the rows have no validation split, by which the choice is made.
    """
    losses_of = run_trial or (lambda trial: _validation_losses(trial, resources))
    candidates = {model: with_model(settings, model) for model in CANDIDATES}
    losses: dict[str, Floats] = {}
    started = time.perf_counter()
    for model, trial in candidates.items():
        losses[model] = losses_of(trial)
        if not len(losses[model]):
            raise UsageError(
                "model is auto, and the runs have no validation rows: give val_share, or a model"
            )
        if not np.isfinite(losses[model]).all():  # training diverged
            del losses[model]
    if not losses:
        raise UsageError("model is auto, and every candidate diverged: give a smaller lr")
    chosen = simplest_within_error(losses)
    if on_message is not None:
        shown = ", ".join(f"{model} {float(own.mean()):.4g}" for model, own in losses.items())
        on_message(
            f"model auto: {chosen} by {candidates[chosen].method.name} is chosen, the simplest "
            f"within one standard error of the lowest loss on {len(losses[chosen])} validation "
            f"rows ({shown}); {time.perf_counter() - started:.0f} s for all candidates"
        )
    return candidates[chosen]


def _validation_losses(trial: ExperimentConfig, resources: ResourceConfig | None) -> Floats:
    """Run a candidate and return the losses of its validation rows; empty without rows."""
    task = build_task(trial)
    if not isinstance(task, ExamplesTask) or not task.has_split("val"):
        return np.zeros(0)
    # Only the models at the end count: no scores on the way, and no site trained alone.
    changed = replace(trial.run, eval_every=trial.run.rounds, local_baseline=False)
    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        path = Path(folder) / "trial"
        run(replace(trial, run=changed), path, resources=resources)
        tensors = RunFolder(path).outputs("val").read_tensors()
    rows = RowOutputs.from_tensors(tensors, task.info.client_names)
    return row_losses(rows, task.objective, PERSONAL)
