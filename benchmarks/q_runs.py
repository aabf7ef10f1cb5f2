"""Helpers of q_figures.py: resumable cells, runs, tuned rates."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.frl import tabular
from equipoise.frl.mdp import TabularMDP

FOLDER = Path(__file__).parent / "results" / "q"
RATES = [float(f"{eta:.2g}") for eta in np.geomspace(0.0003, 0.95, 27)]
SEED, TUNING_SEED = 1, 2  # rates are chosen on other random numbers than those they are reported on
Present = Callable[[int], np.ndarray | None]


def cell(name: str, compute: Callable[[], dict[str, Any]], folder: Path = FOLDER) -> dict[str, Any]:
    """The stored result of a cell, computed and written first if it is not there yet."""
    path = folder / f"{name}.json"
    if not path.exists():
        begin = time.perf_counter()
        result = compute()
        result["seconds"] = round(time.perf_counter() - begin, 2)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(result, indent=1) + "\n")
        part.replace(path)
        print(f"{name}: {result['seconds']} s", flush=True)
    return dict(json.loads(path.read_text()))


def curve(
    problem: tabular.Problem,
    rule: str,
    eta: float,
    tau: int,
    steps: int,
    *,
    sims: int = 100,
    seed: int = SEED,
    random_start: bool = True,
    present: Present | None = None,
    yardstick: TabularMDP | None = None,
) -> np.ndarray:
    """Normalised errors [rounds, sims] of the server's table after each synchronisation."""
    state = tabular.init_state(problem, sims, seed, random_start)
    out = []
    for r in range(steps // tau):
        tabular.local_period(problem, state, seed, eta, tau)
        tabular.synchronise(state, rule, eta, None if present is None else present(r))
        out.append(tabular.errors(state.table, yardstick or problem.mdp))
    return np.array(out)


def summary(errors: np.ndarray) -> dict[str, float]:
    """Mean, standard error and 10-90 % band over simulations."""
    low, high = np.quantile(errors, [0.1, 0.9])
    return {
        "error": round(float(errors.mean()), 5),
        "standard_error": round(float(errors.std(ddof=1) / np.sqrt(len(errors))), 5),
        "p10": round(float(low), 5),
        "p90": round(float(high), 5),
    }


def tuned(problem: tabular.Problem, rule: str, tau: int, steps: int, **how: Any) -> dict[str, Any]:
    """The rate with the least final error on the tuning seed, and what it reaches on the reporting seed."""
    trials = {eta: float(curve(problem, rule, eta, tau, steps, seed=TUNING_SEED, **how)[-1].mean()) for eta in RATES}
    eta = min(trials, key=trials.__getitem__)
    return {"eta": eta, **summary(curve(problem, rule, eta, tau, steps, **how)[-1])}


def rounds_to(errors: np.ndarray, target: float) -> int | None:
    """First round after which the mean error over simulations is at most the target."""
    hits = np.flatnonzero(errors.mean(axis=1) <= target)
    return int(hits[0]) + 1 if len(hits) else None


def fastest(problem: tabular.Problem, rule: str, tau: int, steps: int, target: float, **how: Any) -> dict[str, Any]:
    """The rate that reaches the target first on the tuning seed, and its rounds on the reporting seed."""
    found: dict[float, int] = {}
    for eta in RATES:
        rounds = rounds_to(curve(problem, rule, eta, tau, steps, seed=TUNING_SEED, **how), target)
        if rounds is not None:
            found[eta] = rounds
    if not found:
        return {"eta": None, "rounds": None}
    eta = min(found, key=found.__getitem__)
    return {"eta": eta, "rounds": rounds_to(curve(problem, rule, eta, tau, steps, **how), target)}
