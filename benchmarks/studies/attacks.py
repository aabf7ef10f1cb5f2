"""Hostile clients: methods under robust rules and attacks, a tenth and three tenths of the clients,
and one of 100.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cell import Run, percent, run
from benchmarks.lab.tables import mean, spread, table
from equipoise.core import ClientUpdate, ServerMessage
from equipoise.experiment.runner import run as run_settings
from equipoise.settings.experiment_config import ExperimentConfig
from equipoise.simulation.attacks import AttackedExecutor, hostile_clients
from equipoise.simulation.executors import Executor, Stacked

SEEDS = (1, 2, 3)
ONE_SEEDS = (
    1,
    2,
    3,
    4,
    5,
)  # of PAGE, whose agents make much of little: two runs of it differ by points
RULES = (
    "none",
    "trust",
    "adaptive:1",
    "median",
    "trimmed:0.3",
    "geometric",
    "multikrum:0.3",
    "centred:1",
)
MAIN = (
    "none",
    "trust",
)  # the others lost on seed 1 of FedAvg wherever trust was measured, and have no more seeds
ATTACKS = ("flip", "scaled", "noise", "constant", "little", "metrics", "labels", "backdoor")
SHARES = (0.1, 0.3)
EVERY = ("none", *(f"{attack}:{share}" for share in SHARES for attack in ATTACKS))
KNOWN = tuple(
    f"known:{share}" for share in SHARES
)  # the server is told who lies, and leaves them out
HARD = (
    "none",
    *KNOWN,
    *(
        f"{attack}:{share}"
        for share in SHARES
        for attack in ("flip", "little", "labels", "backdoor")
    ),
)
ONE = ("none", "flip:0.01", "noise:0.01", "huge:0.01", "metrics:0.01", "labels:0.01")
METHODS = ("fedavg", "autopilot", "fedpolicy")
PROTECTED = (
    *(
        "fedavg",
        "fedavgm",
        "fedprox",
        "scaffold",
        "feddyn",
        "ditto",
        "pfedme",
        "finetune",
        "autopilot",
    ),
    "page",
)
TWO_BLOCKS = (
    "fedper",
    "fedrep",
    "fedbabu",
    "fedrod",
    "fedala",
    "fedpolicy",
)  # these need a deeper model
SYNTHETIC = {
    "task": "synthetic",
    "executor": "stacked",
    "clients": 100,
    "eval_every": 10,
    "threads": 1,
}
FASHION = {
    **{
        "task": "fmnist",
        "model": "mlp",
        "executor": "stacked",
        "clients": 20,
        "participation": 1.0,
    },
    **{"eval_every": 5, "threads": 1, "epochs": 1},
}


class Known(AttackedExecutor):
    """Liars send what nobody can take: what is left is what a server has that knows them."""

    def _lie(
        self, updates: ClientUpdate, message: ServerMessage, lying: Tensor, round: int
    ) -> ClientUpdate:
        shape = {name: (-1, *[1] * (value.dim() - 1)) for name, value in updates.params.items()}
        none = {
            name: torch.where(lying.view(shape[name]), torch.nan, value)
            for name, value in updates.params.items()
        }
        return replace(updates, params=none)


def options(task: str, method: str, rule: str, attack: str, seed: int) -> dict[str, Any] | None:
    """The options of a cell; what takes long is measured where it tells most."""
    if attack in KNOWN and rule != "none":
        return None
    if rule not in MAIN and (task != "synthetic" or method != "fedavg" or seed != SEEDS[0]):
        return None
    if task == "fashion-mnist" and (method == "autopilot" or attack not in HARD):
        return None
    base: dict[str, Any] = (
        {**SYNTHETIC, "rounds": 60} if task == "synthetic" else {**FASHION, "rounds": 20}
    )
    if method == "fedavg":
        base["epochs"] = 1
    if method == "fedpolicy":
        base["model"] = "mlp"
    words = {
        name: value
        for name, value in (("robust", rule), ("attack", attack))
        if value not in ("none", *KNOWN)
    }
    return {**base, **words, "method": method, "seed": seed}


def one(method: str, attack: str, seed: int) -> dict[str, Any]:
    """One client of 100 lies, and nothing is asked for against it."""
    words = {} if attack == "none" else {"attack": attack}
    model = {"model": "mlp"} if method in TWO_BLOCKS else {}
    return {
        **SYNTHETIC,
        **words,
        **model,
        "rounds": 20,
        "epochs": 1,
        "method": method,
        "seed": seed,
    }


def cells(results: Results) -> Iterable[Cell]:
    """What matters most first."""
    every = (*EVERY, *KNOWN)
    yield from grid(
        options, task=("synthetic",), method=METHODS, rule=MAIN, attack=HARD, seed=SEEDS
    )
    for method in (*PROTECTED, *TWO_BLOCKS):
        seeds = ONE_SEEDS if method == "page" else SEEDS
        for cell in grid(one, method=(method,), attack=ONE, seed=seeds):
            yield Cell({"task": "one of 100", **cell.axes}, cell.options)
    yield from grid(
        options, task=("fashion-mnist",), method=METHODS, rule=MAIN, attack=HARD, seed=SEEDS
    )
    rest = [attack for attack in every if attack not in HARD]
    yield from grid(
        options, task=("synthetic",), method=METHODS, rule=MAIN, attack=rest, seed=SEEDS
    )
    yield from grid(
        options,
        task=("synthetic",),
        method=METHODS[:1],
        rule=RULES[2:],
        attack=every,
        seed=SEEDS[:1],
    )


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    attack, liars = str(cell.axes["attack"]), set[int]()
    if attack != "none":
        share = float(attack.split(":")[1])
        liars = set(hostile_clients(cell.options["seed"], cell.options["clients"], share).tolist())
    if attack in KNOWN:

        def telling(*about: Any) -> Executor:
            return Known(Stacked(*about), "known", share)

        run_settings(
            ExperimentConfig.from_options(dict(cell.options)),
            folder,
            overwrite=True,
            make_executor=telling,
        )
        done = Run(folder)
    else:
        done = run(cell.options, folder)
    found, ids = done.summary, done.clients("client")
    try:
        own = done.clients("personal_acc")
    except KeyError:  # the personal model is the trained one
        own = done.clients("trained_acc")
    honest = [score for client, score in zip(ids, own, strict=True) if int(client) not in liars]
    return {
        "global": percent(found["global"]),
        "honest": round(100 * sum(honest) / len(honest), 2),
        "left_out": found["dropped_updates"],
        **(
            {"backdoor": round(100 * found["backdoor"], 2)}
            if found.get("backdoor") is not None
            else {}
        ),
    }


def _table(task: str, methods: Iterable[str]) -> Any:
    def made(results: Results) -> list[str]:
        lines = []
        for method in methods:
            here = results.where(task=task, method=method)
            if not here:
                continue
            attacks = [
                attack for attack in (*EVERY, *KNOWN) if any(r["attack"] == attack for r in here)
            ]
            for side, title in (
                ("global", "global model"),
                ("honest", "honest clients' own models"),
            ):
                rows = []
                for rule in RULES:
                    found = {
                        a: [r[side] for r in here if r["rule"] == rule and r["attack"] == a]
                        for a in attacks
                    }
                    if any(found.values()):
                        rows.append([rule, *(spread(found[a]) for a in attacks)])
                lines += [
                    f"**{method}, {title}, accuracy %**",
                    "",
                    *table(["rule", *attacks], rows),
                ]
            marked = [attack for attack in attacks if attack.startswith("backdoor")]
            rows = []
            for rule in RULES if marked else ():
                found = {
                    a: [r["backdoor"] for r in here if r["rule"] == rule and r["attack"] == a]
                    for a in marked
                }
                if any(found.values()):
                    rows.append([rule, *(spread(found[a]) for a in marked)])
            if rows:
                lines += [
                    f"**{method}, marked rows that the global model takes for class 0, %**",
                    "",
                ]
                lines += table(["rule", *marked], rows)
        return lines

    return made


def alone(results: Results) -> list[str]:
    """Points that one lying client of 100 costs, with the protection that is always on: the dearer
    side, over seeds.
    """
    rows = []
    for method in (*PROTECTED, *TWO_BLOCKS):
        at = {"task": "one of 100", "method": method}
        costs = []
        for attack in ONE[1:]:
            sides = [_costs(results, at, "none", attack, side) for side in ("global", "honest")]
            known = [side for side in sides if side]
            costs.append(spread(max(known, key=mean)) if known else None)  # type: ignore[arg-type]
        honest = [r["left_out"] for r in results.where(attack="none", **at)]
        if honest:
            rows.append([method, *costs, sum(honest), len(honest)])
    return table(["method", *ONE[1:], "left out of honest runs", "seeds"], rows)


def _costs(
    results: Results,
    at: dict[str, Any],
    rule: str,
    attack: str,
    side: str = "global",
    beside: str = "none",
) -> list[float]:
    """Points below the run of the same seed without attack, under rule ``beside``, for each seed
    that has both.
    """

    def scores(rule: str, attack: str) -> dict[int, float]:
        found = [
            r for r in results.where(attack=attack, **at) if r.axes.get("rule", "none") == rule
        ]
        return {r["seed"]: r[side] for r in found if r[side] is not None}

    clean, attacked = scores(beside, "none"), scores(rule, attack)
    return [clean[seed] - value for seed, value in attacked.items() if seed in clean]


def summary(results: Results) -> list[str]:
    """What the best rule keeps, in points below the run without attack; and
    what no rule can keep.
    """
    rows = []
    for task, method, share, name in product(
        ("synthetic", "fashion-mnist"), METHODS, SHARES, ATTACKS
    ):
        at, attack = {"task": task, "method": method}, f"{name}:{share}"
        lost = {rule: mean(_costs(results, at, rule, attack)) for rule in RULES}
        known = {rule: value for rule, value in lost.items() if value is not None}
        if "none" not in known or len(known) < 2:
            continue
        best = min(known, key=lambda rule, known=known: known[rule])  # type: ignore[misc]
        same = mean(_costs(results, at, best, attack, beside=best))
        told = mean(_costs(results, at, "none", f"known:{share}"))
        figures = [
            f"{value:.1f}" if value is not None else None
            for value in (known["none"], known[best], same, told)
        ]
        seeds = len(results.where(rule=best, attack=attack, **at))
        rows.append([task, method, attack, figures[0], best, *figures[1:], seeds])
    head = ["task", "method", "attack", "lost without a rule", "best rule", "lost with it"]
    return table(
        [*head, "beside the same rule, nobody attacks", "lost if liars are known", "seeds"], rows
    )


STUDY = Study(
    name="attacks",
    cells=cells,
    measure=measure,
    tables={
        "summary": summary,
        "synthetic": _table("synthetic", METHODS),
        "fashion": _table("fashion-mnist", METHODS),
        "alone": alone,
    },
)
