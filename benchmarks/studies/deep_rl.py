"""Federated deep Q-learning: every method on CartPole and Acrobot, newcomers, absent and late agents, who gets what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cell import Run, built, run
from benchmarks.studies import deep_rl_page as page
from equipoise.frl.deep.newcomers import MARKS, WARMUP, adapt, what_learns
from equipoise.frl.deep.task import AgentTask
from equipoise.frl.deep.worlds import PhysicsWorld

SEEDS, TUNING_SEEDS = (21, 22, 23), (1, 2)  # those of tuning are never reported
EVALUATIONS = 10
COMMON: dict[str, Any] = {"episodes": 5, "epochs": 50, "rounds": 60}
MUJOCO: dict[str, Any] = {"agents": 4, "parallel": 1, "epochs": 250, "width": 64, "slow_after": 0, "episodes": 3}
TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {},
    "acrobot": {"rounds": 80, "explore_steps": 12000, "target_rate": 0.1, "slow_after": 0},
    "hopper": {**MUJOCO, "rounds": 24},
    "half-cheetah": {**MUJOCO, "rounds": 12},
}
UNSEEN = (0.03, 0.22, 0.43, 0.62, 0.84, 0.97)  # of newcomers; the agents' own are 0.05, 0.15 .. 0.95
MAIN: dict[str, dict[str, Any]] = {name: {"method": name} for name in page.MAIN}
ABLATION: dict[str, dict[str, Any]] = {
    "body shared, both in every step": {"method": "pfeddqn-rep", "head_steps": 0},
    "head shared": {"method": "fedpolicy", "base": "dqnavg", "policy": "head"},
    "body shared, K = 1": {"method": "pfeddqn-rep", "head_steps": 1},
    "all shared, K = 1": {"method": "dqnavg", "head_steps": 1},
    "none shared, K = 1": {"method": "dqn", "head_steps": 1},
}
ABSENT = {
    f"{name}, {what}": {"method": name, **options}
    for name in ("dqnavg", "pfeddqn-rep")
    for what, options in (
        ("30 % absent", {"participation": 0.7}),
        ("half of them 5 rounds late", {"delay": 5, "late": 0.5}),
    )
}
POLICIES = {
    f"fedpolicy {policy}": {"method": "fedpolicy", "base": "dqnavg", "policy": policy, "val_episodes": 3}
    for policy in ("learned", "dqn", "random")
}
VARIANTS: dict[str, dict[str, Any]] = {**MAIN, **ABSENT, **ABLATION, **POLICIES}
ON = {
    "cartpole": tuple(VARIANTS),
    "acrobot": tuple(MAIN),
    **dict.fromkeys(("hopper", "half-cheetah"), tuple(name for name in MAIN if name != "perdqnavg")),  # no embedding
}


def options_of(task: str, own: Mapping[str, Any], seed: int, tuned: Mapping[str, Any]) -> dict[str, Any]:
    """The task's options, those found for its method, its own. FedPolicy is at dqnavg's settings."""
    options = {**COMMON, **TASKS[task], **tuned, **own, "task": task, "seed": seed, "executor": "stacked"}
    options |= {"eval_every": max(1, options["rounds"] // EVALUATIONS), "checkpoint_every": 10**6}
    if own["method"] == "fedpolicy" and "slow_after" in options:
        options["base_options"] = f"slow_after={options.pop('slow_after')}"
    return options


def cells(results: Results) -> list[Cell]:
    """First the tuning; then every variant at the settings that it found, unless they make it a main one."""

    def trial(stage: str, task: str, method: str, setting: str, seed: int) -> dict[str, Any] | None:
        tried = page.settings_of(task, method)
        return options_of(task, {"method": method, **tried[setting]}, seed, {}) if setting in tried else None

    best, settings = (
        page.chosen(results),
        dict.fromkeys(setting for task in page.TUNED for method in MAIN for setting in page.settings_of(task, method)),
    )

    def reported(task: str, variant: str, seed: int) -> dict[str, Any] | None:
        own = VARIANTS[variant]
        tuned = best.get((task, own.get("base", own["method"])), {})
        options = options_of(task, own, seed, tuned)
        same = variant not in MAIN and options == options_of(task, {"method": own["method"]}, seed, tuned)
        unwanted = variant not in ON[task] or (task == "half-cheetah" and seed != SEEDS[0])
        return None if same or unwanted or (task in page.TUNED and len(best) < len(page.TUNED) * len(MAIN)) else options

    trials = grid(trial, stage=["tuning"], task=page.TUNED, method=MAIN, setting=settings, seed=TUNING_SEEDS)
    return [*trials, *grid(reported, task=TASKS, variant=VARIANTS, seed=SEEDS)]


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    done = run(cell.options, folder)
    curve = points(done)
    if "stage" in cell.axes:
        return {"score": round(page.score(curve), 1)}
    result: dict[str, Any] = {
        "curve": curve,
        "agents": [round(value, 1) for value in done.clients("trained_return")],
        "bytes": done.summary["bytes"],
    }
    if cell.options["method"] == "fedpolicy":
        given = [part for log in done.logs for part in log["notes"]["part"]]
        result["parts"] = {part: given.count(k) / len(given) for k, part in enumerate(("full", "backbone", "head"))}
    if cell.axes["variant"] in MAIN and cell.axes["task"] in page.TUNED:
        result["newcomers"] = newcomers(cell, done)
    return result


def newcomers(cell: Cell, done: Run) -> dict[str, list[float]]:
    """What each method offers a newcomer (the body alone, a whole net to tune, a net with an embedding, or nothing),
    and the returns after so many environment steps of its own."""
    method, task = built(cell.options)
    assert isinstance(task, AgentTask)
    assert isinstance(task.world, PhysicsWorld)
    seed = cell.options["seed"]
    start = done.server_model(task.init_params(seed)) if method.shares else task.init_params(seed + 1000)
    stack = {key: value.expand(len(UNSEEN), *value.shape) for key, value in start.items()}
    world = PhysicsWorld(task.world.physics, np.array(UNSEEN))
    each = adapt(task, world, stack, MARKS, what_learns(method, task), WARMUP, seed).mean(2)
    return {str(mark): [round(float(v), 1) for v in row] for mark, row in zip((0, *MARKS), each, strict=True)}


def points(done: Run) -> list[dict[str, Any]]:
    """One point per evaluation: environment steps of each agent, return over agents and of what they received."""
    config = done.config
    found = []
    for log in done.evaluated:
        scores = {"mean": log["trained"]["return"], "std": log["trained"]["std"], "received": log["received"]["return"]}
        steps = log["round"] * config["epochs"] * config["parallel"]
        found.append({"steps": steps, **{name: round(value, 1) for name, value in scores.items()}})
    return found


STUDY = Study(name="deep_rl", cells=cells, measure=measure, tables=page.TABLES, figures=page.FIGURES)
