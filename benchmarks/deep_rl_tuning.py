"""Settings of deep_rl.py: the same small budget for every method, on seeds that are never reported."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

Options = dict[str, Any]
SEEDS = (1, 2)
METHODS = ("dqn", "dqnavg", "perdqnavg", "pfeddqn-rep")
RATES: tuple[Options, ...] = ({}, {"lr": 5e-4}, {"lr": 2e-3})  # the task's own settings come first
ELSE: Mapping[str, tuple[Options, ...]] = {
    "cartpole": ({"target_rate": 0.05}, {"slow_after": 0}),
    "acrobot": ({"target_rate": 0.03},),
}
RHYTHMS: Mapping[str, tuple[Options, ...]] = {  # what pfeddqn-rep has and the others have not
    "cartpole": ({"body_rate": 0.3}, {"head_steps": 1}),
    "acrobot": ({"body_rate": 0.3},),
}


def settings_of(task: str, method: str) -> tuple[Options, ...]:
    """As many for every method: three rates, and one or two of what matters most to it beside."""
    return (*RATES, *(RHYTHMS if method == "pfeddqn-rep" else ELSE)[task])


def score(curve: list[dict[str, float]]) -> float:
    """Mean return over the second half of the evaluations: less noisy than the end alone."""
    return fmean(point["mean"] for point in curve[len(curve) // 2 :])


def rows(results: Path) -> list[Options]:
    file = results / "tuning.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def tune(
    results: Path,
    run: Callable[[str, str, int, Options], Options],
    options_of: Callable[[str, Options], Options],
    only: str,
    ends: float,
) -> None:
    """All that is missing, one line each."""
    known = {(row["task"], row["method"], json.dumps(row["setting"]), row["seed"]) for row in rows(results)}
    for task in ELSE:
        for method in METHODS:
            for setting in settings_of(task, method):
                for seed in SEEDS:
                    if (task, method, json.dumps(setting), seed) in known or only not in ("", task):
                        continue
                    if time.time() > ends:
                        return
                    cell = run(task, method, seed, options_of(task, {"method": method, **setting}))
                    row = {"task": task, "method": method, "setting": setting, "seed": seed}
                    row |= {"score": round(score(cell["curve"]), 1), "cpu_seconds": cell["cpu_seconds"]}
                    with open(results / "tuning.jsonl", "a") as file:
                        file.write(json.dumps(row) + "\n")
                    print(row, flush=True)


def means(results: Path) -> dict[tuple[str, str], list[tuple[Options, float]]]:
    """Of each (task, method): its settings with their scores over seeds, where all seeds are there."""
    found: dict[tuple[str, str], list[tuple[Options, float]]] = {}
    known = rows(results)
    for task in ELSE:
        for method in METHODS:
            for setting in settings_of(task, method):
                own = [
                    row["score"]
                    for row in known
                    if (row["task"], row["method"], row["setting"]) == (task, method, setting)
                ]
                if len(own) == len(SEEDS):
                    found.setdefault((task, method), []).append((setting, fmean(own)))
    return found


def chosen(results: Path) -> dict[tuple[str, str], Options]:
    """The best setting of each (task, method)."""
    return {key: max(tried, key=lambda pair: pair[1])[0] for key, tried in means(results).items()}
