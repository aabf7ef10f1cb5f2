"""Where a shared representation pays: deep agents that differ in several ways, newcomers, absent
agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cell import Run, built, run
from benchmarks.studies import deep_rl_page as page
from equipoise.environments.deep_task import DeepRLTask
from equipoise.environments.heldout import LEARNING_STARTS, adapt, trainable_blocks
from equipoise.environments.vec_env import PhysicsVecEnv

SEEDS = range(500, 520)
EVALUATIONS = 5
MARKS = (1000, 5000)  # environment steps of a newcomer after which it is judged
UNSEEN = (0.03, 0.22, 0.43, 0.62, 0.84, 0.97)  # of newcomers; the agents' own are evenly spread
COMMON: dict[str, Any] = {
    "episodes": 5,
    "width": 64,
    "executor": "stacked",
    "checkpoint_every": 10**6,
}
MUJOCO: dict[str, Any] = {
    "task": "gym",
    "env_kwargs": '[{"u": 0.125}, {"u": 0.375}, {"u": 0.625}, {"u": 0.875}]',
    "epochs": 250,
    "agents": 4,
    "parallel": 4,
    "batch_size": 256,
}
TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {"rounds": 40, "epochs": 50, "agents": 10},
    "acrobot": {"rounds": 50, "epochs": 50, "agents": 10},
    "pendulum": {"rounds": 20, "epochs": 200, "agents": 6},
    "hopper": {"rounds": 200, **MUJOCO, "env_id": "benchmarks.hopper:HopperWithLeg"},
    # A fifth of Hopper's rounds: a first run, not a comparison.
    "halfcheetah": {
        "rounds": 40,
        **MUJOCO,
        "env_id": "benchmarks.half_cheetah:HalfCheetahWithThigh",
    },
}
WANTED = {
    "cartpole": len(SEEDS),
    "acrobot": len(SEEDS),
    "pendulum": 5,
    "hopper": 5,
    "halfcheetah": 1,
}  # seeds of each
DEAR = {("acrobot", "fedpolicy"): 5}  # seeds of methods that take several times as long there
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in page.MAIN if name != "fedpolicy"},
    "fedpolicy": {"method": "fedpolicy", "base": "dqnavg", "policy": "trained", "val_episodes": 2},
    page.IMPORTANCE: {"method": page.IMPORTANCE},
    page.ALTERNATING: {"method": "pfeddqn-rep", "head_steps": 4},
    page.RANDOM_BODY: {"method": "pfeddqn-rep", "body_rate": 1e-9},
    **{name: {"method": "pfeddqn-rep", "agents": agents} for name, agents in page.SIZES.items()},
    "head shared": {"method": "fedpolicy", "base": "dqnavg", "policy": "head"},
    **{
        f"{name}, {words}": {"method": name, **options}
        for name in ("dqnavg", "pfeddqn-rep")
        for words, options in page.TROUBLES.items()
    },
}


def options(seed: int, task: str, kind: str, method: str) -> dict[str, Any] | None:
    """Every method at the task's default settings; nothing was tuned on these seeds."""
    number, side = seed - SEEDS[0], method not in page.MAIN
    if kind not in page.KINDS[task] or number >= DEAR.get((task, method), WANTED[task]):
        return None
    if method in page.MISSING.get(task, ()):
        return None
    kinds = page.KINDS[task] if method == page.IMPORTANCE else ("reversed",)
    if side and (task != "cartpole" or kind not in kinds or seed not in page.SIDE_SEEDS):
        return None
    own = {**COMMON, "task": task, **TASKS[task], **VARIANTS[method], "seed": seed}
    # MuJoCo's agents differ by env_kwargs: how thick a leg is.
    differ = {"differ": kind} if own["task"] != "gym" else {}
    return {**own, **differ, "eval_every": own["rounds"] // EVALUATIONS}


def cells(results: Results) -> list[Cell]:
    """A few seeds of everything before more of anything: tasks and kinds one after the other, a
    seed at a time.
    """
    first = {"cartpole": 5, "acrobot": 3, "pendulum": 2, "hopper": 1, "halfcheetah": 1}
    tasks, kinds = list(TASKS), ("reversed", "length", "goal", "sensors", "legs")
    found = grid(options, seed=SEEDS, task=TASKS, kind=kinds, method=VARIANTS)

    def turn(cell: Cell) -> tuple[bool, int, bool, int, int]:
        task, number = cell.axes["task"], cell.axes["seed"] - SEEDS[0]
        side = cell.axes["method"] not in page.MAIN
        return (
            number >= first[task],
            tasks.index(task),
            side,
            kinds.index(cell.axes["kind"]),
            number,
        )

    return sorted(found, key=turn)


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    done = run(cell.options, folder)
    result: dict[str, Any] = {
        "curve": points(done),
        "agents": [round(value, 1) for value in done.clients("trained_return")],
        "bytes": done.summary["bytes"],
    }
    main = cell.axes["method"] in page.MAIN and cell.axes["task"] in page.NEWCOMERS
    return result | ({"newcomers": newcomers(cell.options, done)} if main else {})


def newcomers(options: Mapping[str, Any], done: Run) -> dict[str, float]:
    """Mean return of agents that nobody has seen after so many steps of their own, from what their
    method offers.
    """
    method, task = built(options)
    assert isinstance(task, DeepRLTask)
    assert isinstance(task.env, PhysicsVecEnv)
    seed = options["seed"]
    start = (
        done.server_model(task.init_params(seed))
        if method.default_shared_blocks
        else task.init_params(seed + 1000)
    )
    stack = {key: value.expand(len(UNSEEN), *value.shape) for key, value in start.items()}
    world = PhysicsVecEnv.from_traits(
        task.env.physics, np.array(UNSEEN), (options["differ"],), seed + 1000
    )
    each = adapt(
        task, world, stack, MARKS, trainable_blocks(method, task), LEARNING_STARTS, seed
    ).mean((1, 2))
    return {
        str(mark): round(float(value), 1) for mark, value in zip((0, *MARKS), each, strict=True)
    }


def points(done: Run) -> list[dict[str, Any]]:
    """One point per evaluation: environment steps of each agent, return of what it received and of
    what it trained.
    """
    config, found = done.config, []
    for log in done.evaluated:
        scores = {name: round(log[name]["return"], 1) for name in ("received", "trained")}
        found.append({"steps": log["round"] * config["epochs"] * config["parallel"], **scores})
    return found


STUDY = Study(
    name="deep_rl", cells=cells, measure=measure, tables=page.TABLES, figures=page.FIGURES
)
