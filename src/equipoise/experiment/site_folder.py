"""The folder of a single site: a Flower node, or a newcomer.

Its own model is in the place of the global model. Beside it may be the federation's global model
(``federation.safetensors``), a constant and the model that was trained alone
(``baselines.safetensors``), and the verdict on rows that the models never had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from equipoise.core import Params
from equipoise.data.federated_dataset import Target
from equipoise.experiment.decision import Entry, Evidence, judge
from equipoise.experiment.detailed_scores import calibration_curves
from equipoise.experiment.evaluation import constant_outputs, site_rows
from equipoise.experiment.hazard import fit_hazard
from equipoise.experiment.row_outputs import (
    CONSTANT,
    GLOBAL,
    LOCAL,
    PERSONAL,
    RowOutputs,
    resample,
)
from equipoise.records import codec
from equipoise.records.decision import Decision
from equipoise.records.evaluation import EvaluationDetails
from equipoise.records.manifest import Content
from equipoise.records.run_dir import RunFolder
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils import serialization
from equipoise.utils.record import to_json


def baseline_tensors(client: int, constant: Tensor, params: Params) -> Params:
    """Return the content of ``baselines.safetensors`` of one site.

    Args:
        client: Number of the site among the clients of the card.
        constant: Outputs ``[outputs]`` of the best constant.
        params: Model that was trained alone; empty without one.
    """
    return {
        "client_ids": torch.tensor([client]),
        CONSTANT: constant[None],
        **{f"{LOCAL}.{name}": value[None] for name, value in params.items()},
    }


def verdict_files(
    folder: RunFolder, decision: Decision, rows: RowOutputs, target: Target
) -> dict[str, Content]:
    """Return the files that hold the verdict and the calibration of a site's models.

    Args:
        folder: Folder of the site.
        decision: The verdict.
        rows: What all models say about rows that they never had.
        target: What is predicted.
    """
    models = [model for model in rows.outputs if model != CONSTANT]
    details = EvaluationDetails(
        title=f"{rows.sites[0]}: {len(rows.y)} held-out rows",
        decision=decision,
        calibration=calibration_curves(rows, target, models),
    )
    return {
        folder.decision.name: codec.dumps(decision, indent=1),
        folder.evaluation.name: codec.dumps(details, indent=1),
    }


def rival_files(
    folder: RunFolder,
    task: ExamplesTask,
    client: int,
    name: str,
    method: str,
    models: Mapping[str, Params],
) -> dict[str, Content]:
    """Return what a node adds to its folder at the end of a run.

    Args:
        folder: Folder of the site.
        task: Task with its rows.
        client: Number of the site.
        name: Name of the site.
        method: Name of the method.
        models: Models by kind: ``personal``, ``local``, and ``global`` if there is a whole one.

    Returns:
        Content by file name: the other models, the verdict and the calibration.
    """
    rows = site_rows(task, client, models, name)
    decision = judge_site(rows, task.data.target, method, task.info.metric)
    constant = constant_outputs(task, client)
    tensors = {
        folder.baselines.name: baseline_tensors(client, constant, models.get(LOCAL, {})),
        folder.model("federation").name: models.get(GLOBAL, {}),
    }
    files: dict[str, Content] = {
        file: partial(serialization.fill_tensors, tensors=params, texts={})
        for file, params in tensors.items()
        if params
    }
    if task.info.target_kind == "survival":
        train = site_rows(task, client, models, name, "train")
        files[folder.hazard.name] = to_json(fit_hazard(train, [client]))
    return {**files, **verdict_files(folder, decision, rows, task.data.target)}


# ------------------------------------------------------------------ verdict


def judge_site(
    rows: RowOutputs, target: Target, method: str, metric: str, num_folds: int = 0
) -> Decision:
    """Judge the personal model of one site against all others on the same rows.

    Args:
        rows: What all models say about the rows of one site.
        target: What is predicted.
        method: Name of the method.
        metric: Main metric.
        num_folds: Folds of the cross-validation by which rows were held out; 0 for a split.

    Returns:
        The decision; its headline compares with the global model and with training alone.
    """
    name = rows.sites[0]
    entries = [
        Entry(model, "" if model in (CONSTANT, LOCAL) else method, model) for model in rows.outputs
    ]
    evidence = Evidence(
        target=target,
        metric=metric,
        test=[rows],
        val=[],
        entries=entries,
        train_rows={},
        folds=num_folds,
        source="rows",
        site_models={name: PERSONAL},
    )
    scores = resample(evidence.test, target, metric)
    chosen = next(entry for entry in entries if entry.key == PERSONAL)
    decision = judge(evidence, scores, chosen)
    notes = [note for note in decision.notes if not _is_about_rivals(note)]
    return replace(decision, headline=_headline(decision, name), notes=notes)


def _is_about_rivals(note: str) -> bool:
    """Tell whether a note repeats what the headline says about the global model."""
    return note.startswith(("Ties with it", "Ahead of it", "Behind it"))


def _headline(decision: Decision, name: str) -> str:
    """Say how the personal model compares with the global model and with training alone."""
    metric = decision.metric
    by_model = {one.model: one for one in decision.candidates}
    personal = by_model.get(PERSONAL)
    if personal is None or not np.isfinite(personal.weighted.value):
        return decision.headline
    sentences = [f"{name}: personal model, {metric} {personal.weighted.score_text(metric)}."]
    for model, words in ((GLOBAL, "the global model"), (LOCAL, "training alone on these rows")):
        rival = by_model.get(model)
        if rival is None or rival.difference is None:
            continue
        difference = rival.difference.reversed.difference_text(metric, rival.weighted.value)
        sentences.append(_comparison(words, rival.verdict, difference))
    best = by_model.get(GLOBAL)
    if best is not None and best.verdict == "ahead":
        sentences.append("Use the global model.")
    return " ".join(sentences)


def _comparison(rival: str, verdict: str, difference: str) -> str:
    """Write one comparison; ``difference`` is the personal model's minus the rival's."""
    if verdict == "tie":
        return f"It ties with {rival} ({difference})."
    if verdict == "behind":
        return f"It is better than {rival} ({difference})."
    return f"It is worse than {rival} ({difference})."
