"""Search options of a method and of local training on validation data, with a fixed budget.

Needs the extra ``tune`` (Optuna). Every trial is a run folder, and the study is on disk: a search
resumes where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import TYPE_CHECKING

from equipoise.config.schema import to_config_value
from equipoise.core import Method
from equipoise.experiment.runner import run
from equipoise.methods import find_method
from equipoise.records.manifest import CheckedFolder, seal_line, unseal_line
from equipoise.records.run_dir import CHECKPOINTS, MODELS, RunFolder
from equipoise.records.summary import validation_score
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.option_registry import find, options, resolve_names
from equipoise.settings.resources import ResourceConfig
from equipoise.utils import io
from equipoise.utils.errors import UsageError, install_hint
from equipoise.utils.metrics import higher_is_better

if TYPE_CHECKING:
    from optuna import Study, Trial

BEST_FILE = "best.json"  # options that a search found
JOURNAL_COPY = "optuna.journal"  # the study for optuna-dashboard
NUM_SCORED_EVALUATIONS = 3  # a trial is scored by the mean of its last 3 evaluations
OnTrialEnd = Callable[[str, int, float | None, dict[str, float]], None]
"""Called after each trial with the method, the number, the score and the options tried."""


def tune(
    method: str,
    given: dict[str, object],
    trials: int,
    out: Path,
    on_trial_end: OnTrialEnd | None = None,
    resources: ResourceConfig | None = None,
) -> dict[str, object]:
    """Search for good options of a method on validation data.

    The first trial uses the defaults, so the result is never worse than they are on the
    validation data of the search.

    Args:
        method: Name of the method.
        given: Options that stay fixed.
        trials: Number of settings to try.
        out: Folder of the search; an interrupted search continues there.
        on_trial_end: Called after every trial.
        resources: Resource limits of each run.

    Returns:
        The best options, which are also written to ``out/best.json``.

    Raises:
        UsageError: If Optuna is missing, or no trial gave a validation score.
    """
    optuna = _optuna()
    if trials < 1:
        raise UsageError(f"trials is {trials}: must be at least 1")
    base = ExperimentConfig.from_options({**given, "method": method, "save_personal": False})
    ranges = search_space(find_method(method), base, given)
    io.make_folder(out)
    with io.locked(out):
        fixed = {name: to_config_value(value) for name, value in given.items()}
        _check_same_search(out, {"method": method, "given": fixed, "ranges": ranges})
        study = _study(optuna, out, method, {name: base.to_dict[name] for name in ranges})
        while (done := sum(trial.state.is_finished() for trial in study.trials)) < trials:
            # One sampler per trial: a resumed search tries what it would have tried.
            study.sampler = optuna.samplers.TPESampler(seed=base.run.seed + done)
            trial = _next_trial(optuna, study)
            tried = {name: _suggest(trial, name, low, high) for name, (low, high) in ranges.items()}
            flat = {**base.to_dict, **tried}
            score = _score(flat, out / f"trial-{done:03d}", resources, is_first=not done)
            failed = optuna.trial.TrialState.FAIL if score is None else None
            study.tell(trial, score, state=failed)
            if on_trial_end:
                on_trial_end(method, done + 1, score, tried)
        if not any(trial.value is not None for trial in study.trials):
            raise UsageError(
                f"no trial of {method} gave a validation score: every one diverged or was refused"
            )
        best = dict(study.best_trial.params)
        result = {"method": method, "score": study.best_value, "trials": trials, "options": best}
        CheckedFolder(out).file(BEST_FILE).write(json.dumps(result, indent=1))
    return best


def _study(optuna: ModuleType, out: Path, name: str, defaults: dict[str, object]) -> Study:
    """Open the study on disk, or create it with the defaults as first trial."""
    storage = optuna.storages.JournalStorage(_Journal(out / "study.log"))
    study: Study = optuna.create_study(
        storage=storage, study_name=name, direction="maximize", load_if_exists=True
    )
    study.enqueue_trial(defaults, skip_if_exists=True)
    return study


def _next_trial(optuna: ModuleType, study: Study) -> Trial:
    """Return the trial that was interrupted, or a new one."""
    running = optuna.trial.TrialState.RUNNING
    begun = next((trial for trial in study.trials if trial.state == running), None)
    if begun is None:
        return study.ask()
    interrupted: Trial = optuna.trial.Trial(study, begun._trial_id)
    return interrupted


class _Journal:
    """Journal backend of Optuna that uses the durable writes of this package.

    Beside it, ``optuna.journal`` has the same lines in Optuna's own form, for optuna-dashboard.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.copy = path.with_name(JOURNAL_COPY)
        text = path.read_bytes() if path.exists() else b""
        whole_lines = text[: text.rfind(b"\n") + 1]  # ignore a last line that a crash cut
        if whole_lines != text or not path.exists():
            io.write_bytes(path, whole_lines)
        io.write_text(self.copy, "".join(_journal_line(log) for log in self.read_logs(0)))

    def read_logs(self, log_number_from: int) -> list[dict[str, object]]:
        lines = self.path.read_bytes().splitlines(keepends=True)
        try:
            return [self._parse_line(line) for line in lines[log_number_from:]]
        except ValueError as error:
            raise UsageError(f"'{self.path}' is damaged: choose another --out ({error})") from error

    @staticmethod
    def _parse_line(line: bytes) -> dict[str, object]:
        text = unseal_line(line)
        if text is None:
            raise ValueError("the checksum of a line does not match")
        log: dict[str, object] = json.loads(text)
        return log

    def append_logs(self, logs: list[dict[str, object]]) -> None:
        io.append(self.path, b"".join(seal_line(json.dumps(log)) for log in logs).decode())
        io.sync(self.path)
        io.append(self.copy, "".join(map(_journal_line, logs)))


def _journal_line(log: dict[str, object]) -> str:
    """Write a log as Optuna's own journal does."""
    return json.dumps(log, separators=(",", ":")) + "\n"


def search_space(
    method: type[Method], base: ExperimentConfig, given: dict[str, object]
) -> dict[str, tuple[float, float]]:
    """Return the ranges that are searched.

    These are the learning rate (a tenth to three times the task's default), the epochs (up to the
    task's default), and the options that the method declares.

    Args:
        method: Class of the method.
        base: Settings of the search.
        given: Options that stay fixed.

    Returns:
        Bounds by option.
    """
    usual = base.task_spec.default_training(base.task_config)
    known = options(method, base.task_spec)
    ranges: dict[str, tuple[float, float]] = {
        "lr": (usual.lr / 10, usual.lr * 3),
        "epochs": (1, usual.epochs),
        **{find(known, f"method.{name}"): bounds for name, bounds in method.search_space.items()},
    }
    fixed = resolve_names(known, given)
    return {
        name: bounds
        for name, bounds in ranges.items()
        if name not in fixed and bounds[0] < bounds[1]
    }


def read_best(folder: Path, method: str) -> dict[str, object]:
    """Read the options that a search found.

    Args:
        folder: Folder of the searches.
        method: Name of the method.

    Returns:
        The best options.

    Raises:
        UsageError: If there is no such search, or its file is damaged.
    """
    file = CheckedFolder(folder / method).file(BEST_FILE)
    if not file.exists():
        raise UsageError(
            f"there is no '{file}': run 'equipoise tune --methods {method} --out {folder}' first"
        )
    best: dict[str, object] = json.loads(file.read_text())["options"]
    return best


def _score(
    flat: dict[str, object], folder: Path, resources: ResourceConfig | None, is_first: bool
) -> float | None:
    """Run a trial; return its validation score, or None if it was refused or never scored.

    Raises:
        UsageError: If the first trial, of the defaults, is refused: so would be all.
    """
    io.remove(folder)  # an interrupted trial starts again
    settings = ExperimentConfig.from_options(flat)
    try:
        run(settings, folder, resources=resources)
    except UsageError:
        if is_first:
            raise
        return None
    evaluated = [record for record in RunFolder(folder).stream() if record.has_client_scores]
    metric = evaluated[-1].trained.metric or ""
    scores = [validation_score(record, metric, higher_is_better(metric)) for record in evaluated]
    last = [score for score in scores[-NUM_SCORED_EVALUATIONS:] if score is not None]
    RunFolder(folder).forget([CHECKPOINTS, MODELS])
    return fmean(last) if last else None


def _suggest(trial: Trial, name: str, low: float, high: float) -> float | int:
    if isinstance(low, int) and isinstance(high, int):
        return int(trial.suggest_int(name, low, high))
    return float(trial.suggest_float(name, low, high, log=True))


def _check_same_search(out: Path, about: dict[str, object]) -> None:
    """Raise ``UsageError`` if the folder holds another search."""
    file = CheckedFolder(out).file("search.json")
    text = json.dumps(about, indent=1)
    if file.exists() and file.read_text() != text:
        raise UsageError(f"'{out}' holds another search: choose another --out")
    file.write(text)


def _optuna() -> ModuleType:
    try:
        import optuna
    except ImportError as error:
        raise UsageError(f"tuning needs Optuna: {install_hint('tune')}") from error
    import optuna.storages.journal

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
