"""Choose the model of tables by validation: linear, a perceptron or trees.

Each candidate runs to its end in a temporary folder; the one with the best validation score is the
model of the run. The test rows are not used.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from equipoise.experiment.runner import OnMessage, build_task, run
from equipoise.methods import find_method
from equipoise.models import TREES
from equipoise.records.rounds import RoundRecord
from equipoise.records.summary import validation_score
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.resources import ResourceConfig
from equipoise.utils.errors import UsageError

CANDIDATES = ("linear", "mlp", TREES)
"""Models from the simplest on: the first of equal scores is chosen."""
TREES_METHOD = "fedtrees"
NETWORK_METHOD = "autopilot"
"""Method of networks if the run asks for one that grows trees."""

RunTrial = Callable[[ExperimentConfig], float]
"""From the settings of a candidate to its validation score, higher is better."""


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
    rounds = method.num_rounds(settings.run.rounds, settings.task_config)
    changed = replace(settings.run, model=model, method=method.name, rounds=rounds)
    return replace(settings, run=changed, method=method)


def choose_model(
    settings: ExperimentConfig,
    on_message: OnMessage | None = None,
    resources: ResourceConfig | None = None,
    run_trial: RunTrial | None = None,
) -> ExperimentConfig:
    """Run every candidate and return the settings of the best one.

    Args:
        settings: Settings whose model is `auto`.
        on_message: Called with the scores of all candidates.
        resources: Resource limits.
        run_trial: Computes the score of a candidate; by default it is run to its end.

    Returns:
        Settings with the model and method of the best candidate.

    Raises:
        UsageError: If the rows have no validation split, by which the choice is made.
    """
    score_of = run_trial or (lambda trial: _validation_score(trial, resources))
    candidates = {model: with_model(settings, model) for model in CANDIDATES}
    scores = {model: score_of(trial) for model, trial in candidates.items()}
    best = max(CANDIDATES, key=lambda model: scores[model])
    if not math.isfinite(scores[best]):
        raise UsageError(
            "model is auto, and no candidate has a validation score: give val_share, or a model"
        )
    if on_message is not None:
        shown = ", ".join(f"{model} {score:.4g}" for model, score in scores.items())
        on_message(
            f"model auto: {best} by {candidates[best].method.name} is chosen by validation "
            f"({shown})"
        )
    return candidates[best]


def _validation_score(trial: ExperimentConfig, resources: ResourceConfig | None) -> float:
    """Run a candidate and return its score at the end; minus infinity without one."""
    records: list[RoundRecord] = []

    def keep(record: RoundRecord) -> None:
        records.append(record)

    info = build_task(trial).info
    short = replace(trial, run=replace(trial.run, eval_every=trial.run.rounds))
    with tempfile.TemporaryDirectory(prefix="equipoise-") as folder:
        run(short, Path(folder) / "trial", on_round_end=keep, resources=resources)
    score = None
    for record in records:
        found = validation_score(record, info.metric, info.higher_is_better)
        score = score if found is None else found
    return -math.inf if score is None else score
