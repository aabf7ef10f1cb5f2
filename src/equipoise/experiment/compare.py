"""Run several methods over several seeds and write their tables."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from equipoise.clock.config import ClockConfig
from equipoise.data.splits import UserRowShares
from equipoise.experiment.build import build_task, needs_server_rows
from equipoise.experiment.model_choice import TREES_METHOD
from equipoise.experiment.row_outputs import LOCAL
from equipoise.experiment.runner import OnMessage, OnRoundEnd, run
from equipoise.models import TREES
from equipoise.records.rounds import RoundRecord
from equipoise.records.run_dir import ComparisonFolder, RunFolder
from equipoise.records.summary import Compared, Summary
from equipoise.report import figures, tables
from equipoise.report.run_data import method_folder_name
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.settings.loading import settings_of
from equipoise.settings.resources import ResourceConfig
from equipoise.simulation.executor_selection import select_executor
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.tasks import TaskSpec
from equipoise.utils import io
from equipoise.utils.errors import UsageError

Cells: TypeAlias = dict[str, dict[str, Any]]
"""Options of each method, or of each label if the options name the method."""
MODEL_SIGN = "@"
"""Between a method and its model in a label, such as ``autopilot@linear``."""


def method_and_model(label: str) -> tuple[str, str]:
    """Split a label into its method and its model; the model is empty if the label names none."""
    method, _, model = label.partition(MODEL_SIGN)
    return method, model


def options_of(label: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a label, with the method and the model that it names.

    Args:
        label: A method, a method with its model (``autopilot@linear``), or any name if the options
            name the method.
        given: Other options.
    """
    method, model = method_and_model(label)
    options = {"method": method, **given}
    return {**options, "model": model} if model and "method" not in given else options


def first_methods(task: TaskSpec, model: str = "", with_models: bool = True) -> tuple[str, ...]:
    """Return the methods of a comparison that names none.

    Args:
        task: The task.
        model: The model of all methods; empty if none is named.
        with_models: Whether to include methods with a model of their own.

    Returns:
        Labels, the simplest first. Those with a model of their own are left out if the user names
        one.
    """
    if model == TREES:
        return (TREES_METHOD, LOCAL)
    if with_models and not model:
        return task.first_methods
    return tuple(label for label in task.first_methods if not method_and_model(label)[1])


def with_equal_steps(cells: Cells) -> Cells:
    """Choose the rounds of each method such that all take as many gradient steps as the first.

    The cost of a round is measured in the first one; a method whose agents choose epochs later may
    take more or fewer steps.

    Args:
        cells: Options of each method.

    Returns:
        The same options with other rounds.
    """
    settings = {label: settings_of(options_of(label, given)) for label, given in cells.items()}
    costs = {label: steps_of_a_round(one) for label, one in settings.items()}
    first = next(iter(cells))
    budget = settings[first].run.rounds * costs[first]
    return {
        label: {**given, "rounds": max(1, round(budget / costs[label]))}
        for label, given in cells.items()
    }


def steps_of_a_round(settings: ExperimentConfig) -> int:
    """Count the gradient steps of all clients in the first round.

    Args:
        settings: Options of the run.

    Returns:
        The number of steps.

    Raises:
        UsageError: If the method does not report its steps.
    """
    run = settings.run
    task = build_task(settings)
    training = settings.training.at(1, run.rounds)
    config = RoundLoopConfig(
        run.rounds, run.seed, run.participation, "stacked", run.rounds, keep_models=False
    )
    make = None
    if run.executor == "auto" and task.info.executor_depends_on_model:
        make = select_executor(task, training, task.info.num_clients).make
    simulation = FederatedSimulation(settings.wrapped_method, task, settings.training, config, make)
    steps = simulation.run_round().steps
    if not steps:
        raise UsageError(
            f"equal steps need methods that tell their gradient steps, and {run.method} does not"
        )
    return steps


Plan: TypeAlias = Sequence[tuple[str, ExperimentConfig, Path]]
"""The runs of a comparison in their order: label of the method, settings, folder."""
Announce = Callable[[ExperimentConfig, Path], OnRoundEnd]
"""Called before each run with its settings and folder; returns its ``on_round_end``."""


def compare(
    cells: Cells,
    seeds: int,
    out: Path,
    command: list[str],
    *,
    resume: bool = False,
    overwrite: bool = False,
    announce: Announce | None = None,
    on_message: OnMessage | None = None,
    resources: ResourceConfig | None = None,
) -> tuple[dict[str, list[Summary]], list[tables.SummaryColumn]]:
    """Run every method with every seed.

    ``table.md``, ``table.csv`` and ``compare.json`` are written after each run. With the extra
    ``plot`` there is also ``pareto.svg``.

    Args:
        cells: Options of each method, or of each label if the options name the method.
        seeds: Number of seeds, from the given seed on.
        out: Folder of the comparison.
        command: Command of the user, for the tables.
        resume: Whether to continue the comparison in the folder.
        overwrite: Whether to replace the comparison in the folder.
        announce: Called before each run.
        on_message: Called with notes before the first round of each run.
        resources: Resource limits of each run.

    Returns:
        The summaries by method and the columns of the table.

    Raises:
        UsageError: If a run is not possible; all are checked before the first one starts.
    """
    plan = _plan_runs(cells, seeds, out)
    _check_plan(plan, out, resume, overwrite)
    io.make_folder(out)
    if overwrite:
        ComparisonFolder(out).clear()
    by_method: dict[str, list[Summary]] = {method: [] for method in cells}
    _write(out, command, plan, by_method)
    for method, settings, folder in plan:
        was_finished = resume and RunFolder(folder).summary.exists()
        on_round_end = announce(settings, folder) if announce else None
        by_method[method].append(
            run(
                settings,
                folder,
                resume=resume,
                overwrite=overwrite,
                on_round_end=on_round_end,
                on_message=on_message,
                resources=resources,
            )
        )
        if not was_finished and folder != plan[-1][2]:
            _write(out, command, plan, by_method)
    return by_method, _write(out, command, plan, by_method)


def _plan_runs(cells: Cells, seeds: int, out: Path) -> Plan:
    """Return one run per method, seed and fold.

    Args:
        cells: Options of each method.
        seeds: Number of seeds, from the given seed on.
        out: Folder of the comparison.
    """
    if seeds < 1:
        raise UsageError(f"seeds is {seeds}: must be at least 1")
    plan: list[tuple[str, ExperimentConfig, Path]] = []
    for method, given in with_common_rows(cells).items():
        for seed in range(seeds):
            first = {**options_of(method, given), "seed": given.get("seed", 0) + seed}
            for fold in range(max(1, num_folds(given))):
                settings = settings_of({**first, "fold": fold} if fold else first)
                folder = out / cell_folder(method, settings.run.seed, fold, num_folds(given))
                plan.append((method, settings, folder))
    return plan


def _write(
    out: Path,
    command: list[str],
    plan: Plan,
    by_method: dict[str, list[Summary]],
) -> list[tables.SummaryColumn]:
    """Write the tables of the finished runs and return their columns."""
    ComparisonFolder(out).write_comparison(Compared(command, by_method))
    finished = {method: summaries for method, summaries in by_method.items() if summaries}
    if not finished:
        return []
    num_done = sum(map(len, finished.values()))
    is_complete = num_done == len(plan)
    with_clock = any(ClockConfig.requested_in(settings.to_dict) for _, settings, _ in plan)
    columns = tables.summary_columns(next(iter(finished.values()))[0], with_clock=with_clock)
    rows = tables.summary_rows(finished, columns)
    title = _title(plan, len(by_method), num_done)
    notes = tables.undefined_notes(finished, columns)
    text = tables.results_markdown(title, rows, columns, shlex.join(command), notes)
    num_seeds = min(map(len, finished.values()))  # seeds that all of these methods have
    main_columns = [column for column in columns if column.is_main_score]
    paired = {method: summaries[:num_seeds] for method, summaries in finished.items()}
    text += tables.paired_markdown(paired, main_columns)
    if is_complete:
        records: dict[str, list[list[RoundRecord]]] = {method: [] for method in by_method}
        for method, _, folder in plan:
            records[method].append(RunFolder(folder).records())
        text += tables.cost_to_target_markdown(records, with_clock=with_clock)
    io.write_text(out / "table.md", text)
    io.write_text(out / "table.csv", tables.results_csv(rows, columns))
    if is_complete:
        _write_pareto(out, title, rows)
    return columns


def _title(plan: Plan, num_methods: int, num_done: int) -> str:
    """Task, rounds and seeds; and how many runs are finished, unless all are."""
    run = plan[0][1].run
    seeds = len({settings.run.seed for _, settings, _ in plan})
    title = f"{run.task}: {run.rounds} rounds, {seeds} seed{'s' if seeds > 1 else ''}"
    folds = len(plan) // num_methods // seeds
    if folds > 1:
        title += f", {folds} folds"
    if num_done < len(plan):
        title += f"; {num_done} of {len(plan)} runs finished"
    return title


def _write_pareto(out: Path, title: str, rows: tables.Rows) -> None:
    """Draw global against personal score of the methods that have both."""
    points: dict[str, tuple[float, float]] = {}
    for method, cells in rows.items():
        means = {cell.column.score: cell.mean for cell in cells if cell.column.is_main_score}
        x = means.get("global")
        y = means.get("personal")
        if x is not None and y is not None:
            points[method] = (x, y)
    column = next(iter(rows.values()))[0].column
    unit = column.title.removeprefix("global ")
    figures.write_pareto_svg(points, title, out / "pareto.svg", unit, column.higher_is_better)


def cell_folder(label: str, seed: int, fold: int = 0, folds: int = 0) -> Path:
    """Return the folder of a run, relative to that of the comparison.

    Args:
        label: Label of the method.
        seed: Seed of the run.
        fold: Number of the fold, from 0 on.
        folds: Number of folds; 0 without.
    """
    name = f"seed-{seed}-fold-{fold}" if folds else f"seed-{seed}"
    return Path(method_folder_name(label)) / name


def num_folds(given: Mapping[str, Any]) -> int:
    """Return the number of folds that options ask for; 0 without cross-validation."""
    return int(given.get("folds", given.get("task.folds", 0)))


def with_common_rows(cells: Cells) -> Cells:
    """Make all methods train and test on the same rows, and train each site alone once.

    If one method needs rows of the server, the server takes them for all. A comparison on tables
    without the method ``local`` trains the sites alone beside its first method.

    Args:
        cells: Options of each method.

    Returns:
        The options, completed.
    """
    settings = {label: settings_of(options_of(label, given)) for label, given in cells.items()}
    configs = [one.task_config for one in settings.values()]
    if not all(isinstance(config, UserRowShares) for config in configs):
        return cells
    common: dict[str, Any] = {}
    if any(map(needs_server_rows, settings.values())):
        common["server_rows"] = "always"
    has_local = any(one.run.method == LOCAL for one in settings.values())
    first = next(iter(cells))
    return {
        label: {**common, "local_baseline": label == first and not has_local, **given}
        for label, given in cells.items()
    }


def with_table_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the options of a single run as :func:`with_common_rows` does.

    Args:
        given: Options of the run, with its method.

    Returns:
        The options; a run on tables trains each site alone too, unless told otherwise.
    """
    return with_common_rows({"run": dict(given)})["run"]


def suitable(cells: Cells) -> tuple[Cells, dict[str, str]]:
    """Find the methods that can run with their options.

    Args:
        cells: Options of each method.

    Returns:
        The options of these methods, and for each other method the reason.
    """
    suited: Cells = {}
    refused: dict[str, str] = {}
    for method, given in cells.items():
        try:
            build_task(ExperimentConfig.from_options({**given, "method": method}))
            suited[method] = given
        except UsageError as error:
            refused[method] = str(error)
    return suited, refused


def _check_plan(plan: Plan, out: Path, resume: bool, overwrite: bool) -> None:
    """Check all runs before the first one starts."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"'{out}' is a file: choose another --out")
    if out.exists() and any(out.iterdir()) and not (resume or overwrite):
        raise UsageError(
            f"'{out}' exists already: choose another --out, or give --resume or --overwrite"
        )
    checked: set[str] = set()
    for method, settings, folder in plan:
        if method not in checked:
            build_task(settings)
            checked.add(method)
        run_folder = RunFolder(folder)
        if (
            resume
            and run_folder.has_config()
            and ExperimentConfig.from_options(run_folder.read_config()).to_dict != settings.to_dict
        ):
            raise UsageError(
                f"'{folder}' holds a run with other options: choose another --out, or --overwrite"
            )
