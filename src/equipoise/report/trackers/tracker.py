"""What trackers have in common, and what they are told of a round."""

from __future__ import annotations

import importlib
import math
from statistics import fmean
from typing import Any, Protocol

from equipoise.records import codec
from equipoise.records.rounds import RoundRecord
from equipoise.records.summary import Summary

PROJECT = "equipoise"  # experiment of MLflow, project of W&B
NO_FIGURES = (
    "round",
    "ids",
    "decisions",
    "stop",
)  # of a round: its place, or lists that notes and means stand for
Figures = dict[str, float]


class Tracker(Protocol):
    """One tracker's view of one run; built from the run folder, its config and the id of an earlier sitting, if any."""

    id: str

    def write(self, step: int, figures: Figures) -> None: ...

    def close(self, finished: bool) -> None: ...


def of_round(record: RoundRecord) -> Figures:
    """Every finite number by a name with slashes; of a list its mean, of dropped clients their number."""
    tree = codec.encode(record)
    return _figures(
        {name: len(value) if name == "dropped" else value for name, value in tree.items()},
        NO_FIGURES,
    )


def of_summary(summary: Summary) -> Figures:
    """What the rounds have not told, under ``summary/``."""
    found = _figures(codec.encode(summary), ("global", "seed", "rounds"))
    return {f"summary/{name}": value for name, value in found.items()}


def _figures(tree: dict[str, Any], without: tuple[str, ...]) -> Figures:
    found: Figures = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{name}/{key}", inner)
        elif isinstance(value, list) and value and all(isinstance(v, int | float) for v in value):
            add(name, fmean(value))
        elif isinstance(value, int | float) and math.isfinite(value):
            found[name] = float(value)

    for name, value in tree.items():
        if name not in without:
            add(name, value)
    return found


def module(name: str) -> Any:
    """An extra's module, untyped: type checks do not depend on what is installed."""
    return importlib.import_module(name)
