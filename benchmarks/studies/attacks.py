"""Hostile clients: methods under robust rules and attacks, a tenth and three tenths of the clients, and one of 100."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cell import Run, percent, run
from benchmarks.lab.tables import mean, spread, table
from equipoise.contract import Tree, Up
from equipoise.runs.running import run as run_settings
from equipoise.runtime.attacks import Attacked, hostile_clients
from equipoise.runtime.executors import Executor, Stacked
from equipoise.settings.config import Settings

SEEDS = (1, 2, 3)
RULES = ("none", "adaptive:1", "median", "trimmed:0.3", "geometric", "multikrum:0.3", "centred:1", "trust")
CHEAP = ("none", "multikrum:0.3", "trust")  # where a run takes long
ATTACKS = ("flip", "scaled", "noise", "constant", "little", "metrics", "labels", "backdoor")
SHARES = (0.1, 0.3)
EVERY = ("none", *(f"{attack}:{share}" for share in SHARES for attack in ATTACKS))
KNOWN = tuple(f"known:{share}" for share in SHARES)  # the server is told who lies, and leaves them out
HARD = ("none", "flip:0.1", "little:0.1", "metrics:0.1", "flip:0.3", "little:0.3")
ONE = ("none", "flip:0.01", "noise:0.01", "huge:0.01", "metrics:0.01")
METHODS = ("fedavg", "equilibrium", "fedpolicy")
PROTECTED = (
    *("fedavg", "fedavgm", "fedprox", "scaffold", "feddyn", "ditto", "pfedme", "finetune", "equilibrium", "autopilot"),
    "page",
)
TWO_BLOCKS = ("fedper", "fedrep", "fedbabu", "fedrod", "fedala", "fedpolicy")  # these need a deeper model
SYNTHETIC = {"task": "synthetic", "executor": "stacked", "clients": 100, "eval_every": 10, "threads": 1}
FASHION = {
    **{"task": "fmnist", "model": "mlp", "executor": "stacked", "clients": 20, "participation": 1.0},
    **{"eval_every": 5, "threads": 1, "epochs": 1},
}


class Known(Attacked):
    """Liars send what nobody can take: what is left is what a server has that knows them."""

    def _lie(self, up: Up, sent: Tree, lying: Tensor, round: int) -> Up:
        shape = {name: (-1, *[1] * (value.dim() - 1)) for name, value in up.params.items()}
        none = {name: torch.where(lying.view(shape[name]), torch.nan, value) for name, value in up.params.items()}
        return replace(up, params=none)


def options(task: str, method: str, rule: str, attack: str, seed: int) -> dict[str, Any] | None:
    """The options of a cell; rules that cost too much for a slow method or task are left out."""
    if attack in KNOWN and rule != "none":
        return None
    if (task == "fashion-mnist" or method != "fedavg") and (rule not in CHEAP or attack not in (*HARD, *KNOWN)):
        return None
    if task == "fashion-mnist" and (method == "equilibrium" or attack == "metrics:0.1"):
        return None
    base: dict[str, Any] = {**SYNTHETIC, "rounds": 60} if task == "synthetic" else {**FASHION, "rounds": 20}
    if method == "fedavg":
        base["epochs"] = 1
    if method == "fedpolicy":
        base["model"] = "mlp"
    words = {name: value for name, value in (("robust", rule), ("attack", attack)) if value not in ("none", *KNOWN)}
    return {**base, **words, "method": method, "seed": seed}


def one(method: str, attack: str, seed: int) -> dict[str, Any]:
    """One client of 100 lies, and nothing is asked for against it."""
    words = {} if attack == "none" else {"attack": attack}
    model = {"model": "mlp"} if method in TWO_BLOCKS else {}
    return {**SYNTHETIC, **words, **model, "rounds": 20, "epochs": 1, "method": method, "seed": seed}


def cells(results: Results) -> Iterable[Cell]:
    kinds = {"task": ("synthetic", "fashion-mnist"), "method": METHODS, "rule": RULES, "attack": (*EVERY, *KNOWN)}
    yield from grid(options, **kinds, seed=SEEDS)
    for cell in grid(one, method=(*PROTECTED, *TWO_BLOCKS), attack=ONE, seed=SEEDS[:1]):
        yield Cell({"task": "one of 100", **cell.axes}, cell.options)


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    attack, liars = str(cell.axes["attack"]), set[int]()
    if attack != "none":
        share = float(attack.split(":")[1])
        liars = set(hostile_clients(cell.options["seed"], cell.options["clients"], share).tolist())
    if attack in KNOWN:

        def telling(*about: Any) -> Executor:
            return Known(Stacked(*about), "known", share)

        run_settings(Settings.of(dict(cell.options)), folder, overwrite=True, make_executor=telling)
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
        **({"backdoor": round(100 * found["backdoor"], 2)} if found.get("backdoor") is not None else {}),
    }


def _table(task: str, methods: Iterable[str]) -> Any:
    def made(results: Results) -> list[str]:
        lines = []
        for method in methods:
            here = results.where(task=task, method=method)
            if not here:
                continue
            attacks = [attack for attack in (*EVERY, *KNOWN) if any(r["attack"] == attack for r in here)]
            for side, title in (("global", "global model"), ("honest", "honest clients' own models")):
                rows = []
                for rule in RULES:
                    found = {a: [r[side] for r in here if r["rule"] == rule and r["attack"] == a] for a in attacks}
                    if any(found.values()):
                        rows.append([rule, *(spread(found[a]) for a in attacks)])
                lines += [f"**{method}, {title}, accuracy %**", "", *table(["rule", *attacks], rows)]
            marked = [attack for attack in attacks if attack.startswith("backdoor")]
            rows = []
            for rule in RULES if marked else ():
                found = {a: [r["backdoor"] for r in here if r["rule"] == rule and r["attack"] == a] for a in marked}
                if any(found.values()):
                    rows.append([rule, *(spread(found[a]) for a in marked)])
            if rows:
                lines += [f"**{method}, marked rows that the global model takes for class 0, %**", ""]
                lines += table(["rule", *marked], rows)
        return lines

    return made


def alone(results: Results) -> list[str]:
    """Points that one lying client of 100 costs, with the protection that is always on."""
    rows = []
    for method in (*PROTECTED, *TWO_BLOCKS):
        here = {r["attack"]: r for r in results.where(task="one of 100", method=method)}
        if "none" not in here:
            continue
        costs = []
        for attack in ONE[1:]:
            sides = [(here["none"][side], here[attack][side]) for side in ("global", "honest") if attack in here]
            known = [clean - lied for clean, lied in sides if clean is not None and lied is not None]
            costs.append(f"{max(known):+.1f}" if known else None)
        rows.append([method, *costs, here["none"]["left_out"]])
    return table(["method", *ONE[1:], "left out of the honest run"], rows)


def _lost(results: Results, at: dict[str, Any], rule: str, attack: str) -> float | None:
    """Points below the run of the same seed without attack and rule, on average over the seeds that have both."""
    clean = {r["seed"]: r["global"] for r in results.where(rule="none", attack="none", **at)}
    found = {r["seed"]: r["global"] for r in results.where(rule=rule, attack=attack, **at)}
    return mean(clean[seed] - value for seed, value in found.items() if seed in clean)


def summary(results: Results) -> list[str]:
    """What the best rule keeps, in points below the run without attack and rule; and what no rule can keep."""
    rows = []
    for task in ("synthetic", "fashion-mnist"):
        for method in METHODS:
            for share in SHARES:
                for attack in (f"{name}:{share}" for name in ATTACKS):
                    at = {"task": task, "method": method}
                    lost = {rule: _lost(results, at, rule, attack) for rule in RULES}
                    known = {rule: value for rule, value in lost.items() if value is not None}
                    if "none" not in known or len(known) < 2:
                        continue
                    best = min(known, key=lambda rule, known=known: known[rule])  # type: ignore[misc]
                    told = _lost(results, at, "none", f"known:{share}")
                    seeds = len(results.where(rule=best, attack=attack, **at))
                    figures = [f"{value:.1f}" if value is not None else None for value in (known[best], told)]
                    rows.append([task, method, attack, f"{known['none']:.1f}", best, *figures, seeds])
    head = ["task", "method", "attack", "lost without a rule", "best rule", "lost with it", "lost if liars are known"]
    return table([*head, "seeds"], rows)


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
