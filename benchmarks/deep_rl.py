"""Federated deep Q-learning: every method on CartPole and Acrobot, newcomers, absent and late agents, who gets what.

    python benchmarks/deep_rl.py --tune     # every method's settings, on seeds of their own (tuning.jsonl)
    python benchmarks/deep_rl.py            # all cells that are missing, at the settings found, then the page
    python benchmarks/deep_rl.py --page     # the page alone, from the cells that there are

A cell is one run (one method, one seed) and one small JSON in results/deep_rl/; a killed run loses its own cell alone.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deep_rl_page import write_page
from deep_rl_tuning import chosen, tune
from equipoise.contract import Tree
from equipoise.frl.deep.newcomers import MARKS, WARMUP, adapt, what_learns
from equipoise.frl.deep.task import AgentTask
from equipoise.frl.deep.worlds import PhysicsWorld
from equipoise.runs.running import build_task
from equipoise.runtime.round import Schedule, Simulation
from equipoise.settings.config import Settings

RESULTS = Path(__file__).parent / "results" / "deep_rl"
MODELS = Path(tempfile.gettempdir()) / "equipoise-deep-rl"  # for pictures and newcomers; too large to keep
SEEDS = (21, 22, 23)
COMMON = {"episodes": 5, "epochs": 50, "rounds": 60}
MUJOCO = {"agents": 4, "parallel": 1, "epochs": 250, "width": 64, "slow_after": 0, "episodes": 3}
TASKS = {
    "cartpole": {},
    "acrobot": {"rounds": 80, "explore_steps": 12000, "target_rate": 0.1, "slow_after": 0},
    "hopper": {**MUJOCO, "rounds": 24},
    "half-cheetah": {**MUJOCO, "rounds": 12},
}
EVALUATIONS = 10
UNSEEN = (0.03, 0.22, 0.43, 0.62, 0.84, 0.97)  # of newcomers; the agents' own are 0.05, 0.15 .. 0.95

METHODS = ("dqn", "dqnavg", "perdqnavg", "pfeddqn-rep")
MAIN = {name: {"method": name} for name in METHODS}
NEWCOMERS = {f"newcomers of {name}": options for name, options in MAIN.items()}
ABLATION = {
    "body shared, both in every step": {"method": "pfeddqn-rep", "head_steps": 0},
    "body shared, K = 1": {"method": "pfeddqn-rep", "head_steps": 1},
    "head shared": {"method": "fedpolicy", "base": "dqnavg", "policy": "head"},
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
GROUPS = {
    "cartpole": (MAIN, NEWCOMERS, ABSENT, POLICIES, ABLATION),
    "acrobot": (MAIN, NEWCOMERS, {name: ABLATION[name] for name in ("body shared, K = 1", "none shared, K = 1")}),
    "hopper": ({name: options for name, options in MAIN.items() if name != "perdqnavg"},),  # no embedding there
    "half-cheetah": ({name: options for name, options in MAIN.items() if name != "perdqnavg"},),
}
ONCE = ("half-cheetah",)  # tasks of one seed


def cells() -> list[tuple[str, str, int, dict[str, Any]]]:
    """(task, name, seed, options), main comparisons first; every method at the settings that tuning found for it."""
    first, rhythms = {**MAIN, **NEWCOMERS}, [name for name in ABLATION if "K =" in name]
    order = [*first, *ABSENT, *[name for name in ABLATION if name not in rhythms], *POLICIES, *rhythms]
    found = []
    for task, groups in GROUPS.items():
        for name, own in [pair for group in groups for pair in group.items()]:
            options = options_of(task, own)
            if name not in first and own["method"] in MAIN and options == options_of(task, MAIN[own["method"]]):
                continue  # what tuning found is this very cell
            side = 0 if name in first else 1 if task == "cartpole" else 3
            rank = (max(side, 2 * (task in ("hopper", "half-cheetah"))), order.index(name))
            seeds = SEEDS[: 1 if task in ONCE else len(SEEDS)]
            found += [((*rank, seed), (task, name, seed, options)) for seed in seeds]
    return [cell for _, cell in sorted(found, key=lambda pair: pair[0])]


def options_of(task: str, own: dict[str, Any]) -> dict[str, Any]:
    """A cell's options: the task's, those found for its method, its own. FedPolicy is at dqnavg's settings."""
    base, tuned = {**COMMON, **TASKS[task]}, chosen(RESULTS).get((task, own.get("base", own["method"])), {})
    options = {**base, **tuned, **own, "task": task}
    if own["method"] == "fedpolicy" and "slow_after" in options:
        options["base_options"] = f"slow_after={options.pop('slow_after')}"
    return options


def file_of(task: str, name: str, seed: int) -> Path:
    words = "".join(letter if letter.isalnum() else "-" for letter in name)
    return RESULTS / f"{task}-{'-'.join(w for w in words.split('-') if w)}-seed{seed}.json"


def run_cell(task_name: str, name: str, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    settings = Settings.of({**options, "seed": seed})
    task, run = build_task(settings), settings.run
    assert isinstance(task, AgentTask)
    every = max(1, run.rounds // EVALUATIONS)
    schedule = Schedule(run.rounds, seed, run.participation, "stacked", every, True)
    simulation = Simulation(settings.policy, task, settings.training, schedule)
    started, curve, logs = time.process_time(), [], []
    for _ in range(run.rounds):
        log = simulation.round()
        logs.append(log)
        if log.evaluated:
            each = simulation.store.scores["test"]["trained"]["return"].numpy()
            each = each[np.isfinite(each)]  # an agent that was always absent so far has none
            steps = log.round * settings.training.epochs * task.config.parallel
            row = {"steps": steps, "mean": each.mean(), "std": each.std(), "worst": each.min()}
            row["received"] = log.received["return"]
            curve.append({key: round(float(value), 1) if key != "steps" else value for key, value in row.items()})
    cell: dict[str, Any] = {
        "task": task_name,
        "name": name,
        "seed": seed,
        "options": options,
        "curve": curve,
        "agents": [round(float(value), 1) for value in each],
        "bytes": {way: sum(getattr(log.bytes, way) for log in logs) for way in ("up", "down")},
    }
    if name.startswith("fedpolicy"):
        parts = [part for log in logs for part in log.notes["part"]]
        cell["parts"] = {part: parts.count(k) / len(parts) for k, part in enumerate(("full", "backbone", "head"))}
    if name in MAIN and seed in SEEDS:
        MODELS.mkdir(exist_ok=True)
        keep(MODELS / f"{task_name}-{name}-server-seed{seed}.npz", simulation.params)
        if seed == SEEDS[0]:
            keep(MODELS / f"{task_name}-{name}.npz", simulation.personal_models()[1])
    cell["cpu_seconds"] = round(time.process_time() - started, 1)
    return cell


def keep(file: Path, models: Tree) -> None:
    np.savez(file, **{key: value.numpy() for key, value in models.items()})


def run_newcomers(task_name: str, name: str, seed: int, options: dict[str, Any]) -> dict[str, Any] | None:
    """What each method offers a newcomer: the body alone, a whole net to tune, a net with an embedding, or nothing."""
    settings, trained = Settings.of({**options, "seed": seed}), name.removeprefix("newcomers of ")
    task, file = build_task(settings), MODELS / f"{task_name}-{trained}-server-seed{seed}.npz"
    if not file.exists():
        print(f"{file} is gone: remove the cell of {trained}, seed {seed}, to train it again")
        return None
    assert isinstance(task, AgentTask)
    assert isinstance(task.world, PhysicsWorld)
    started = time.process_time()
    params = {key: torch.from_numpy(value) for key, value in np.load(file).items()}
    start = params if settings.method.shares else task.init_params(seed + 1000)
    stack = {key: value.expand(len(UNSEEN), *value.shape) for key, value in start.items()}
    world = PhysicsWorld(task.world.physics, np.array(UNSEEN))
    learns = what_learns(settings.method, task)
    each = adapt(task, world, stack, MARKS, learns, WARMUP, seed).mean(2)
    found = {str(mark): [round(float(v), 1) for v in row] for mark, row in zip((0, *MARKS), each, strict=True)}
    about = {"task": task_name, "name": name, "seed": seed, "options": options}
    return {**about, "newcomers": found, "cpu_seconds": round(time.process_time() - started, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--tune", action="store_true", help="only tune, on seeds that are not reported")
    parser.add_argument("--only", default="", help="only cells of this task")
    parser.add_argument("--minutes", type=float, default=45.0, help="start no cell after so many minutes")
    given = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    ends = time.time() + 60 * given.minutes
    if given.tune:
        tune(RESULTS, run_cell, lambda task, own: {**COMMON, **TASKS[task], **own, "task": task}, given.only, ends)
    for task, name, seed, options in [] if given.page or given.tune else cells():
        file = file_of(task, name, seed)
        if file.exists() or time.time() > ends or given.only not in ("", task):
            continue
        run = run_newcomers if name in NEWCOMERS else run_cell
        cell = run(task, name, seed, options)
        if cell is None:
            continue
        waiting = file.with_suffix(".part")
        waiting.write_text(json.dumps(cell, allow_nan=False) + "\n")
        os.replace(waiting, file)
        print(task, name, seed, cell.get("curve", [cell.get("newcomers")])[-1], cell["cpu_seconds"], flush=True)
    write_page(RESULTS, MODELS)


if __name__ == "__main__":
    main()
