"""The gate before any comparison: do single agents learn what others' single agents learn, seed
after seed?
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cell import built
from benchmarks.lab.tables import table
from equipoise.core import LocalTrainRequest, RngContext
from equipoise.environments.deep_task import DeepRLTask

AGENTS, SEED, EPISODES, MARKS = 10, 9000, 20, 5
GATES: dict[str, dict[str, Any]] = {
    "pendulum": {"at_least": -200.0, "of_ten": 9, "steps": 10_000},
    "cartpole": {"at_least": 475.0, "of_ten": 9, "steps": 100_000},
    "acrobot": {"at_least": -100.0, "of_ten": 8, "steps": 100_000},
}


def cells(results: Results) -> list[Cell]:
    """Ten agents in Gymnasium's own environment (u = 1/2) at the task's default settings."""
    own = {
        "method": "dqn",
        "agents": AGENTS,
        "heterogeneity": ",".join(["0.5"] * AGENTS),
        "episodes": EPISODES,
        "seed": SEED,
    }
    return grid(lambda task: {"task": task, **own}, task=GATES)


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Returns of each agent after parts of its steps.

    Agents share nothing, their first nets neither.
    """
    gate: Mapping[str, Any] = GATES[cell.axes["task"]]
    _, task = built(cell.options)
    assert isinstance(task, DeepRLTask)
    training, ids = task.info.training, torch.arange(AGENTS)
    first = [task.init_params(SEED + k) for k in range(AGENTS)]
    params = {part: torch.stack([one[part] for one in first]) for part in first[0]}
    source, epochs = task.init_data_state(ids), torch.full_like(ids, training.epochs)
    lr = torch.full((AGENTS,), training.lr)
    rounds, curve = gate["steps"] // (training.epochs * task.config.parallel), {}
    for number in range(1, rounds + 1):
        fit = LocalTrainRequest(params, epochs, lr, trainable=tuple(params))
        params, _, source = task.fit_stack(ids, fit, source, RngContext(SEED, number, training))
        if number % (rounds // MARKS) == 0 or number == rounds:
            found = task.evaluate_stack(ids, params, "test")["return"]
            curve[number * training.epochs * task.config.parallel] = [
                round(float(value), 1) for value in found
            ]
    return {
        **gate,
        "reached": sum(value >= gate["at_least"] for value in curve[max(curve)]),
        "returns": curve,
    }


def gates(results: Results) -> list[str]:
    rows = []
    for record in results:
        last = sorted(list(record["returns"].values())[-1])
        verdict = "passed" if record["reached"] >= record["of_ten"] else "**failed**"
        asked = (
            f"{record['at_least']:g} in {record['of_ten']} of ten within {record['steps']:,} steps"
        )
        rows.append(
            [
                record["task"],
                asked,
                f"{record['reached']} of ten: {verdict}",
                ", ".join(f"{v:g}" for v in last),
            ]
        )
    return table(["task", "asked", "reached", "returns of the ten at the end"], rows)


def curves(results: Results) -> list[str]:
    rows = []
    for record in results:
        for steps, values in record["returns"].items():
            rows.append(
                [
                    record["task"],
                    f"{int(steps):,}",
                    sum(value >= record["at_least"] for value in values),
                ]
            )
    return table(["task", "environment steps", "agents of ten that reach it"], rows)


STUDY = Study(
    name="deep_rl_gate", cells=cells, measure=measure, tables={"gates": gates, "curves": curves}
)
