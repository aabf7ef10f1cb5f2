"""From a comparison to the models that sites use: decide, train on all rows, write one folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from equipoise.core import Method
from equipoise.data.splits import UserRowShares
from equipoise.experiment.decision import MODEL_WORDS, runs_by_method, write_decision
from equipoise.experiment.row_outputs import LOCAL, PERSONAL
from equipoise.experiment.runner import OnRoundEnd, run
from equipoise.experiment.site_models import CHOICE_FILE, CHOICE_FOLDER
from equipoise.models import TREES
from equipoise.records import codec
from equipoise.records.decision import Choice, Decision
from equipoise.records.manifest import CheckedFolder
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.tasks import TaskSpec
from equipoise.utils import io
from equipoise.utils.errors import UsageError

REFIT_CHOICES = ("all", "none")
FINAL_RUNS = "final"
"""Folder of the final runs in that of a choice; an interrupted choice has nothing else."""
NOT_COPIED = ("checkpoint", "report.html", "decision.json", io.LOCK_FILE)
"""Entries of a run that its models do not need."""

Announce = Callable[[ExperimentConfig, Path], OnRoundEnd]
"""Called before each final run with its settings and folder; returns its ``on_round_end``."""


def choose(
    path: Path,
    out: Path | None = None,
    *,
    refit: str = "all",
    ensemble: bool = False,
    overwrite: bool = False,
    announce: Announce | None = None,
    method: type[Method] | None = None,
    task: TaskSpec | None = None,
) -> tuple[Choice, Path]:
    """Decide which model each site uses, train it, and write one folder.

    Args:
        path: Folder of a comparison or a run whose clients have names and test rows.
        out: Folder to write; ``chosen`` in ``path`` if None.
        refit: ``all`` trains the final model on all rows of each client, without a test split;
            ``none`` takes the models of the runs as they are.
        ensemble: Whether to take a model of each seed and average them.
        overwrite: Whether to replace an earlier choice in ``out``.
        announce: Called before each final run.
        method: Class of the chosen method, if it was given in Python.
        task: The task, if it was made in Python.

    Returns:
        The choice and its folder.

    Raises:
        UsageError: If nothing can be chosen, or ``out`` is in use.
    """
    if refit not in REFIT_CHOICES:
        raise UsageError(f"refit is '{refit}': must be one of {', '.join(REFIT_CHOICES)}")
    out = out or path / CHOICE_FOLDER
    _refuse_used_folder(out, overwrite)
    decision = write_decision(path)
    if decision is None:
        raise UsageError(
            f"nothing can be chosen in '{path}': its runs are not finished, its clients have no "
            "names or no test rows, or its methods were tested on different rows"
        )
    runs = _runs_of_choice(path, decision)
    if not ensemble:
        runs = runs[:1]
    if out.exists():
        shutil.rmtree(out)
    io.make_folder(out)
    all_settings = [_final_settings(source, decision.rounds, method, task) for source in runs]
    members = [f"{FINAL_RUNS}/seed-{settings.run.seed}" for settings in all_settings]
    if not all(isinstance(settings.task_config, UserRowShares) for settings in all_settings):
        refit = "none"
    for source, settings, member in zip(runs, all_settings, members, strict=True):
        if refit == "none":
            shutil.copytree(source.path, out / member, ignore=shutil.ignore_patterns(*NOT_COPIED))
        else:
            on_round_end = announce(settings, out / member) if announce else None
            run(settings, out / member, on_round_end=on_round_end)
    choice = Choice(
        members=members,
        model=decision.model if decision.federated_method else PERSONAL,
        sites={site.name: site.model for site in decision.sites if site.model != decision.model},
        refit=refit,
        has_validation=runs[0].read_config().get("model") == TREES,
        decision=decision,
    )
    words = "\n\n".join(choice_sentences(choice)) + "\n"
    text = codec.dumps(choice, indent=1)
    CheckedFolder(out).write({"choice.md": words, CHOICE_FILE: text})
    return choice, out


def _refuse_used_folder(out: Path, overwrite: bool) -> None:
    """Raise ``UsageError`` if a folder holds something that must not be replaced.

    What an interrupted choice left is made anew.
    """
    if not out.exists():
        return
    is_interrupted = out.is_dir() and all(entry.name == FINAL_RUNS for entry in out.iterdir())
    if is_interrupted:
        return
    if not out.is_dir() or not (out / CHOICE_FILE).is_file():
        raise UsageError(f"'{out}' is no folder of a choice: choose another --out")
    if (out / CHOICE_FILE).is_file() and not overwrite:
        raise UsageError(f"'{out}' holds a choice already: choose another --out, or --overwrite")


def _runs_of_choice(path: Path, decision: Decision) -> list[RunFolder]:
    """Return one run of the chosen method for each seed.

    Where each site's own model is chosen, it is the best federated method, which trains the own
    models beside its own: new sites then have a global model, and all can be compared.
    """
    by_method = runs_by_method(path)
    runs = by_method.get(decision.federated_method) or next(iter(by_method.values()))
    by_seed = {int(one.read_config()["seed"]): one for one in reversed(runs)}
    return [by_seed[seed] for seed in sorted(by_seed)]


def _final_settings(
    source: RunFolder, rounds: int, method: type[Method] | None, task: TaskSpec | None
) -> ExperimentConfig:
    """Return the settings of the final run: those of the run that it follows, on all rows.

    Schedules reach their end in the last round: without validation rows nothing else makes the
    rates fall. Trees keep their validation rows, which choose how many of them there are.

    Args:
        source: A run of the comparison.
        rounds: Rounds of the final run.
        method: Class of the method, if it was given in Python.
        task: The task, if it was made in Python.
    """
    given = dict(source.read_config())
    whole: dict[str, object] = {
        "rounds": rounds,
        "test_share": 0.0,
        "val_share": 0.0,
        "folds": 0,
        "fold": 0,
        "patience": 0,
        "finetune": False,
        "holdout_clients": 0.0,
        "local_baseline": given["method"] != LOCAL,
    }
    if given.get("model") == TREES:
        del whole["rounds"]
        del whole["val_share"]
    given |= {name: value for name, value in whole.items() if name in given}
    if method is not None:
        given["method"] = method
    if task is not None:
        given["task"] = task
    return ExperimentConfig.from_options(given)


def choice_sentences(choice: Choice) -> list[str]:
    """Say in words what was chosen, and where its scores come from.

    Args:
        choice: The choice.

    Returns:
        The sentences.
    """
    decision = choice.decision
    if decision is None:
        return []
    sentences = [decision.headline]
    common = MODEL_WORDS[decision.model]
    who = f"{decision.method}, {common}" if decision.method else common
    sentences.append(f"All sites use: {who}." if not choice.sites else f"Most sites use: {who}.")
    if choice.sites:
        others = ", ".join(f"{name} ({MODEL_WORDS[kind]})" for name, kind in choice.sites.items())
        sentences.append(f"Others use another model: {others}.")
    members = len(choice.members)
    model = "The final model was" if members == 1 else f"{members} final models, averaged, were"
    if choice.refit == "all" and choice.has_validation:
        sentences.append(
            f"{model} trained on all rows of each site but those of validation, which choose the "
            "number of trees. The scores are those of the split before."
        )
    elif choice.refit == "all":
        sentences.append(
            f"{model} trained on all rows of each site, for {decision.rounds} rounds. The scores "
            "are those of the split before: no row is left to test it on."
        )
    else:
        sentences.append(f"{model} taken from the comparison, trained on the training rows alone.")
    return [*sentences, *decision.notes]
