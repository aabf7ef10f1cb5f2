"""What `--method autopilot --model auto` takes on natural tables, beside each family alone."""

from __future__ import annotations

import math
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.lab import Cell, Results, Study
from benchmarks.lab.cells import Record
from benchmarks.lab.tables import spread, table
from benchmarks.studies.trees import FILES, SGD
from equipoise.experiment.build import build_task
from equipoise.experiment.model_choice import CANDIDATES, with_model
from equipoise.experiment.row_outputs import (
    PERSONAL,
    Floats,
    RowOutputs,
    is_clear,
    row_losses,
    standard_error,
)
from equipoise.experiment.runner import run
from equipoise.records.run_dir import RunFolder
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.tasks.supervised import ExamplesTask
from equipoise.utils.metrics import higher_is_better

SHARES = (math.inf, 0.05, 0.01, 0.0)
"""Bounds beside the standard error: how far a family may be above the lowest loss, as a share."""
SPLITS = tuple(range(30, 38))
"""The rule was chosen on other splits, 20 to 24."""
LARGE = {"airlines": 2}
"""Tables of which only some splits are computed: a split takes minutes, and trees are far ahead."""
MARGIN = 0.005
"""Largest loss against the best family that is aimed at; of errors, as a share of the error."""


def options(data: str, seed: int) -> dict[str, Any]:
    """The options of a run: those of the study `trees`, with the family left open."""
    given = {"task": "tables", **FILES[data], "data": str(FILES[data]["data"]), "seed": seed}
    if data == "villages":
        given["missing_site"] = "drop"
    return {**given, **SGD, "eval_every": 1000, "method": "autopilot", "model": "auto"}


def cells(results: Results) -> list[Cell]:
    """Split by split, so that whenever time is up all tables have nearly the same splits."""
    return [
        Cell({"data": data, "seed": seed}, options(data, seed))
        for seed in SPLITS
        for data in FILES
        if seed - SPLITS[0] < LARGE.get(data, len(SPLITS))
    ]


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Run the families as `--model auto` does; keep losses, test scores and the choice."""
    settings = ExperimentConfig.from_options(dict(cell.options))
    metric = FILES[cell.axes["data"]]["metric"]
    losses = {}
    scores = {}
    seconds = {}
    for family in CANDIDATES:
        trial = with_model(settings, family)
        start = time.process_time()
        run(trial, folder / family, overwrite=True)
        seconds[family] = round(time.process_time() - start, 1)
        task = build_task(trial)
        assert isinstance(task, ExamplesTask)
        place = RunFolder(folder / family)
        rows = RowOutputs.from_tensors(place.outputs("val").read_tensors(), task.info.client_names)
        losses[family] = row_losses(rows, task.objective, PERSONAL)
        column = place.read_table(place.clients)[f"personal_{metric}"]
        scores[family] = round(fmean(value for value in column if math.isfinite(value)), 5)
    return {
        "rows": len(losses[CANDIDATES[0]]),
        "losses": {family: round(float(own.mean()), 5) for family, own in losses.items()},
        "errors": _errors(losses),
        "scores": scores,
        "seconds": seconds,
    }


def _errors(losses: dict[str, Floats]) -> dict[str, float]:
    """Return the standard error of the difference of each family to that of the lowest loss."""
    best = min(losses.values(), key=lambda own: float(own.mean()))
    return {family: round(standard_error(own - best), 5) for family, own in losses.items()}


def choose_family(result: dict[str, Any], share: float = math.inf) -> str:
    """Return the simplest family that is not clearly above the lowest loss.

    Args:
        result: Losses of the families, and standard errors of their differences.
        share: Largest share of the lowest loss by which the family may be above it.
    """
    lowest = min(result["losses"].values())
    return next(
        family
        for family in CANDIDATES
        if result["losses"][family] <= (1 + share) * lowest
        and not is_clear(result["losses"][family] - lowest, result["errors"][family])
    )


def _gaps(data: str, found: list[Record], share: float = math.inf) -> list[float]:
    """Return how far the choice is below the best family, by split; of errors in percent."""
    metric = FILES[data]["metric"]
    sign = 1.0 if higher_is_better(metric) else -1.0
    best = max(CANDIDATES, key=lambda f: sign * fmean(one["scores"][f] for one in found))
    gaps = []
    for one in found:
        score = one["scores"][best]
        gap = sign * (score - one["scores"][choose_family(one.result, share)])
        gaps.append(100 * gap / score if metric == "rmse" else gap)
    return gaps


def choices(results: Results) -> list[str]:
    """Scores of the families and of the choice, and how far the choice is below the best."""
    rows = []
    for data, file in FILES.items():
        found = results.where(data=data)
        if not found:
            continue
        metric = file["metric"]
        digits = 3 if metric == "rmse" else 4
        chosen = [choose_family(one.result) for one in found]
        rows.append(
            [
                data,
                metric,
                len(found),
                found[0]["rows"],
                *(spread([one["scores"][f] for one in found], digits) for f in CANDIDATES),
                ", ".join(f"{f} {chosen.count(f)}" for f in CANDIDATES if f in chosen),
                spread([o["scores"][f] for o, f in zip(found, chosen, strict=True)], digits),
                _gap_text(data, found),
            ]
        )
    head = ["table", "score", "splits", "validation rows", *CANDIDATES]
    return table([*head, "auto takes", "auto", "below the best family"], rows)


def _gap_text(data: str, found: list[Record], share: float = math.inf) -> str:
    """Write how far the choice is below the best family."""
    is_error = FILES[data]["metric"] == "rmse"
    return spread(_gaps(data, found, share), 1 if is_error else 4) + (" %" if is_error else "")


def bounds(results: Results) -> list[str]:
    """How far the choice is below the best family if its loss has another bound, too."""
    rows = [
        [data, len(found), *(_gap_text(data, found, share) for share in SHARES)]
        for data in FILES
        if (found := results.where(data=data))
    ]
    head = ["no bound" if share == math.inf else f"{100 * share:g} %" for share in SHARES]
    return table(["table", "splits", *head], rows)


def costs(results: Results) -> list[str]:
    """Processor seconds of each family, and of `--model auto`."""
    rows = []
    for data in FILES:
        found = results.where(data=data)
        if not found:
            continue
        each = {family: fmean(one["seconds"][family] for one in found) for family in CANDIDATES}
        again = fmean(one["seconds"][choose_family(one.result)] for one in found)
        rows.append([data, *(round(value, 1) for value in each.values())])
        rows[-1].append(round(sum(each.values()) + again, 1))
    return table(["table", *CANDIDATES, "auto: all, and the chosen once more"], rows)


STUDY = Study(
    name="model_choice",
    cells=cells,
    measure=measure,
    tables={"choices": choices, "bounds": bounds, "costs": costs},
)
