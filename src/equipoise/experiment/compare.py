"""Comparisons at equal compute: every method gets as many rounds as the gradient steps of the first one pay for."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from equipoise.experiment.runner import OnRoundEnd, build_task, run
from equipoise.records import codec
from equipoise.records.run_dir import Folder
from equipoise.records.summary import Compared, Summary
from equipoise.report import folders, paired, tables, targets
from equipoise.report.page import pareto
from equipoise.settings.loading import settings_of
from equipoise.settings.run_config import ResourceConfig
from equipoise.settings.run_settings import RunSettings
from equipoise.simulation.executor_selection import select_executor
from equipoise.simulation.server_loop import FederatedSimulation, RoundLoopConfig
from equipoise.utils import io as checkpoint
from equipoise.utils.config_file import read_config
from equipoise.utils.errors import UsageError


def with_equal_steps(cells: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The same methods and options, with rounds such that all take as many gradient steps, up to one round.

    What a round costs is counted in the first one; a method whose agents choose epochs later may take more or fewer.
    """
    settings = {label: settings_of({"method": label, **given}) for label, given in cells.items()}
    costs = {label: steps_of_a_round(one) for label, one in settings.items()}
    first = next(iter(cells))
    budget = settings[first].run.rounds * costs[first]
    return {
        label: {**given, "rounds": max(1, round(budget / costs[label]))}
        for label, given in cells.items()
    }


def steps_of_a_round(settings: RunSettings) -> int:
    """Gradient steps of all clients in the first round."""
    run, task = settings.run, build_task(settings)
    numbers = settings.training.at(1, run.rounds)
    schedule = RoundLoopConfig(
        run.rounds, run.seed, run.participation, "stacked", run.rounds, keep_models=False
    )
    make = (
        select_executor(task, numbers, task.num_clients).make
        if run.executor == "auto" and task.executor_depends_on_model
        else None
    )
    taken = (
        FederatedSimulation(settings.wrapped_method, task, settings.training, schedule, make)
        .run_round()
        .steps
    )
    if not taken:
        raise UsageError(
            f"equal steps need methods that tell their gradient steps, and {run.method} does not"
        )
    return taken


Announce = Callable[[RunSettings, Path], OnRoundEnd]
"""Called before each cell; gives what watches its rounds."""


def compare(
    cells: dict[str, dict[str, Any]],
    seeds: int,
    out: Path,
    command: list[str],
    *,
    resume: bool = False,
    overwrite: bool = False,
    announce: Announce | None = None,
    means: ResourceConfig | None = None,
) -> tuple[dict[str, list[Summary]], list[tables.Column]]:
    """Run every method with every seed; write ``table.md``, ``table.csv`` and ``compare.json`` after each run.

    Arguments:
        cells: each method with its options, or a label with options that name the method.
        seeds: how many seeds; they count from the given seed on.
        out: the folder of the comparison.
        command: how the user asked for it, as the tables show it.
        resume: continue with what is in the folder.
        overwrite: replace what is in the folder.
        announce: called before each run.
        means: what each run may use of the machine.

    Returns:
        The summaries by method and the table's columns. With the extra ``plot`` there is also ``pareto.svg``.
    """
    if seeds < 1:
        raise UsageError(f"seeds is {seeds}: must be at least 1")
    plan: list[tuple[str, RunSettings, Path]] = []
    for method, given in cells.items():
        for seed in range(seeds):
            settings = settings_of({"method": method, **given, "seed": given.get("seed", 0) + seed})
            plan.append((method, settings, out / cell_folder(method, settings.run.seed)))
    _refuse_early(plan, out, resume, overwrite)
    checkpoint.make_folder(out)
    by_method: dict[str, list[Summary]] = {method: [] for method in cells}
    _write(out, command, plan, by_method)
    for method, settings, folder in plan:
        was_finished = resume and Folder(folder).summary.is_file()
        watch = announce(settings, folder) if announce else None
        by_method[method].append(
            run(
                settings,
                folder,
                resume=resume,
                overwrite=overwrite,
                on_round_end=watch,
                resources=means,
            )
        )
        if not was_finished and folder != plan[-1][2]:
            _write(out, command, plan, by_method)
    return by_method, _write(out, command, plan, by_method)


def _write(
    out: Path,
    command: list[str],
    plan: Sequence[tuple[str, RunSettings, Path]],
    by_method: dict[str, list[Summary]],
) -> list[tables.Column]:
    """Write the tables of the runs that have ended, so that a comparison that is killed leaves them; gives columns."""
    checkpoint.write_text(out / "compare.json", codec.dumps(Compared(command, by_method), indent=1))
    finished = {method: summaries for method, summaries in by_method.items() if summaries}
    if not finished:
        return []
    shown = tables.columns(next(iter(finished.values()))[0])
    table = tables.rows(finished, shown)
    seeds, done = len(plan) // len(by_method), sum(map(len, finished.values()))
    title = f"{plan[0][1].run.task}: {plan[0][1].run.rounds} rounds, {seeds} seed{'s' if seeds > 1 else ''}"
    title += f"; {done} of {len(plan)} runs finished" if done < len(plan) else ""
    both = [column for column in shown if column.title.startswith(("global ", "personal "))]
    least = min(map(len, finished.values()))  # seeds that all of these methods have
    pairs = paired.to_markdown(
        {method: summaries[:least] for method, summaries in finished.items()}, both
    )
    ended = (
        {m: [Folder(f).records() for _, _, f in _of(plan, m)] for m in finished}
        if done == len(plan)
        else {}
    )
    pairs += targets.to_markdown(ended) if ended else ""
    checkpoint.write_text(
        out / "table.md", tables.to_markdown(title, table, shown, shlex.join(command)) + pairs
    )
    checkpoint.write_text(out / "table.csv", tables.to_csv(table, shown))
    if done == len(plan):
        means = {
            method: tuple(row[shown.index(column)].mean for column in both)
            for method, row in table.items()
        }
        points = {m: (x, y) for m, (x, y) in means.items() if x is not None and y is not None}
        pareto.draw(
            points, title, out / "pareto.svg", both[0].title.removeprefix("global "), both[0].higher
        )
    return shown


def _of(
    plan: Sequence[tuple[str, RunSettings, Path]], method: str
) -> list[tuple[str, RunSettings, Path]]:
    return [cell for cell in plan if cell[0] == method]


def cell_folder(label: str, seed: int) -> Path:
    """Where a comparison keeps a run."""
    return Path(folders.cell_name(label)) / f"seed-{seed}"


def suitable(cells: dict[str, dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Those methods that can run with their options, and the reasons of the others."""
    suited, refused = {}, {}
    for method, given in cells.items():
        try:
            build_task(RunSettings.from_options({**given, "method": method}))
            suited[method] = given
        except UsageError as error:
            refused[method] = str(error)
    return suited, refused


def _refuse_early(
    plan: list[tuple[str, RunSettings, Path]], out: Path, resume: bool, overwrite: bool
) -> None:
    """Every cell's checks before the first cell runs."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"'{out}' is a file: choose another --out")
    if out.exists() and any(out.iterdir()) and not (resume or overwrite):
        raise UsageError(
            f"'{out}' exists already: choose another --out, or give --resume or --overwrite"
        )
    seen: set[str] = set()
    for method, settings, folder in plan:
        if method not in seen:
            build_task(settings)
            seen.add(method)
        config = folder / "config.json"
        if (
            resume
            and config.exists()
            and RunSettings.from_options(read_config(config)).to_dict != settings.to_dict
        ):
            raise UsageError(
                f"'{folder}' holds a run with other options: choose another --out, or --overwrite"
            )
