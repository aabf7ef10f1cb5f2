"""Federated deep Q-learning: every method on CartPole and Acrobot, newcomers, absent agents, who gets what.

    python benchmarks/deep_rl.py            # all cells that are missing, then the page
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
from equipoise.config import Settings
from equipoise.contract import Tree
from equipoise.frl.deep.newcomers import adapt
from equipoise.frl.deep.task import AgentTask
from equipoise.frl.deep.worlds import PhysicsWorld
from equipoise.runs import build_task
from equipoise.runtime.round import Schedule, Simulation

RESULTS = Path(__file__).parent / "results" / "deep_rl"
MODELS = Path(tempfile.gettempdir()) / "equipoise-deep-rl"  # for pictures; too large to keep
SEEDS = (11, 12, 13)
COMMON = {"episodes": 5, "epochs": 50, "rounds": 60}
TASKS = {
    "cartpole": {},
    "acrobot": {"rounds": 80, "explore_steps": 12000, "target_rate": 0.1, "slow_after": 0},
    "hopper": {"agents": 4, "parallel": 1, "epochs": 250, "rounds": 40, "width": 64, "slow_after": 0, "episodes": 3},
}
EVALUATIONS = 10
UNSEEN = (0.03, 0.22, 0.43, 0.62, 0.84, 0.97)  # of newcomers; the agents' own are 0.05, 0.15 .. 0.95
MARKS = (1000, 5000, 20000)
WARMUP = 200  # steps of a newcomer before it learns

MAIN = {
    "dqn": {"method": "dqn"},
    "dqnavg": {"method": "dqnavg"},
    "perdqnavg": {"method": "perdqnavg"},
    "pfeddqn-rep": {"method": "pfeddqn-rep"},
}
NEWCOMERS = {f"newcomers of {name}": options for name, options in MAIN.items()}
ABLATION = {
    "body shared, both in every step": {"method": "pfeddqn-rep", "head_steps": 0},
    "body shared, K = 4": {"method": "pfeddqn-rep", "head_steps": 4},
    "head shared": {"method": "lgfedavg"},
    "all shared, rhythm K = 1": {"method": "dqnavg", "head_steps": 1},
    "none shared, rhythm K = 1": {"method": "dqn", "head_steps": 1},
}
ABSENT = {
    f"{name}, {what}": {"method": name, **options}
    for name in ("dqnavg", "pfeddqn-rep")
    for what, options in (
        ("30 % absent", {"participation": 0.7}),
        ("a mean 5 times as late", {"epochs": 250, "rounds": 12}),
    )
}
POLICIES = {
    f"fedpolicy {policy}": {"method": "fedpolicy", "base": "dqnavg", "policy": policy, "val_episodes": 3}
    for policy in ("learned", "dqn", "random")
}


def cells() -> list[tuple[str, str, int, dict[str, Any]]]:
    """(task, name, seed, options): CartPole's main comparison in all seeds first."""
    found = []
    for seed in SEEDS:
        for task, own in TASKS.items():
            groups = [MAIN, NEWCOMERS, POLICIES, ABLATION, ABSENT] if task == "cartpole" else [MAIN]
            if task == "hopper":  # no embedding there, and one seed is what the budget allows
                groups = [{n: o for n, o in MAIN.items() if n != "perdqnavg"}] if seed == SEEDS[0] else []
            found += [(task, n, seed, {**COMMON, **own, **o, "task": task}) for g in groups for n, o in g.items()]
    order = [*MAIN, *ABSENT, *POLICIES, *NEWCOMERS, *ABLATION]
    rank = {"cartpole": 0, "acrobot": 1}

    def priority(cell: tuple[str, str, int, dict[str, Any]]) -> tuple[int, int, int]:
        task, name, seed, _ = cell
        if task == "hopper":
            return 1, 1, len(order) + order.index(name)  # after the second seed of Acrobot
        late = SEEDS.index(seed) if name not in MAIN or task == "acrobot" else 0
        return late, rank[task] + 2 * (name not in MAIN), order.index(name)

    return sorted(found, key=priority)


def file_of(task: str, name: str, seed: int) -> Path:
    words = "".join(letter if letter.isalnum() else "-" for letter in name)
    return RESULTS / f"{task}-{'-'.join(w for w in words.split('-') if w)}-seed{seed}.json"


def run_cell(task_name: str, name: str, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    settings = Settings.of({**options, "seed": seed})
    task, run = build_task(settings), settings.run
    assert isinstance(task, AgentTask)
    every = max(1, run.rounds // EVALUATIONS)
    schedule = Schedule(run.rounds, seed, run.participation, "stacked", every, True)
    simulation = Simulation(settings.method, task, settings.training, schedule)
    started, curve, logs = time.process_time(), [], []
    for _ in range(run.rounds):
        log = simulation.round()
        logs.append(log)
        if "trained" in log:
            each = simulation.store.tree("scores")["test"]["trained"]["return"].numpy()
            each = each[np.isfinite(each)]  # an agent that was always absent so far has none
            steps = log["round"] * settings.training.epochs * task.config.parallel
            row = {"steps": steps, "mean": each.mean(), "std": each.std(), "worst": each.min()}
            row["received"] = log["received"]["return"]
            curve.append({key: round(float(value), 1) if key != "steps" else value for key, value in row.items()})
    cell: dict[str, Any] = {
        "task": task_name,
        "name": name,
        "seed": seed,
        "options": options,
        "curve": curve,
        "agents": [round(float(value), 1) for value in each],
        "bytes": {way: sum(log["bytes"][way] for log in logs) for way in ("up", "down")},
    }
    if name.startswith("fedpolicy"):
        parts = [part for log in logs for part in log["notes"]["part"]]
        cell["parts"] = {part: parts.count(k) / len(parts) for k, part in enumerate(("full", "backbone", "head"))}
    if name in MAIN:
        MODELS.mkdir(exist_ok=True)
        keep(MODELS / f"{task_name}-{name}-server-seed{seed}.npz", simulation.params)
        if seed == SEEDS[0]:
            keep(MODELS / f"{task_name}-{name}.npz", simulation.personal_models()[1])
    cell["cpu_seconds"] = round(time.process_time() - started, 1)
    return cell


def keep(file: Path, models: Tree) -> None:
    np.savez(file, **{key: value.numpy() for key, value in models.items()})


def run_newcomers(name: str, seed: int, options: dict[str, Any]) -> dict[str, Any] | None:
    """What each method offers a newcomer: the body alone, a whole net to tune, a net with an embedding, or nothing."""
    task, trained = build_task(Settings.of({**options, "seed": seed})), name.removeprefix("newcomers of ")
    file = MODELS / f"cartpole-{trained}-server-seed{seed}.npz"
    if not file.exists():
        print(f"{file} is gone: remove the cell of {trained}, seed {seed}, to train it again")
        return None
    assert isinstance(task, AgentTask)
    started = time.process_time()
    params = {key: torch.from_numpy(value) for key, value in np.load(file).items()}
    found = newcomers(task, trained, params, seed)
    about = {"task": "cartpole", "name": name, "seed": seed, "options": options}
    return {**about, "newcomers": found, "cpu_seconds": round(time.process_time() - started, 1)}


def newcomers(task: AgentTask, name: str, params: Tree, seed: int) -> dict[str, Any]:
    assert isinstance(task.world, PhysicsWorld)
    world = PhysicsWorld(task.world.physics, np.array(UNSEEN))
    fresh = task.init_params(seed + 1000)
    start = fresh if name == "dqn" else params
    frozen = name in ("pfeddqn-rep", "perdqnavg")
    stack = {key: value.expand(len(UNSEEN), *value.shape) for key, value in start.items()}
    found = adapt(task, world, stack, MARKS, (not frozen, True), WARMUP, seed).mean(2)
    return {str(mark): [round(float(v), 1) for v in row] for mark, row in zip((0, *MARKS), found, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--minutes", type=float, default=45.0, help="start no cell after so many minutes")
    given = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    started = time.time()
    for task, name, seed, options in [] if given.page else cells():
        file = file_of(task, name, seed)
        if file.exists() or time.time() - started > 60 * given.minutes:
            continue
        cell = run_newcomers(name, seed, options) if name in NEWCOMERS else run_cell(task, name, seed, options)
        if cell is None:
            continue
        waiting = file.with_suffix(".part")
        waiting.write_text(json.dumps(cell, allow_nan=False) + "\n")
        os.replace(waiting, file)
        print(task, name, seed, cell.get("curve", [cell.get("newcomers")])[-1], cell["cpu_seconds"], flush=True)
    write_page(RESULTS, MODELS)


if __name__ == "__main__":
    main()
