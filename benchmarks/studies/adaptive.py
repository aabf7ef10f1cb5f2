"""Attacks that know the guards: one, ten and thirty of 100 hostile clients, defaults and rules."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cell import percent, run
from benchmarks.lab.tables import mean, spread, table

SEEDS = (1, 2, 3)
SHARES = (0.01, 0.1, 0.3)
ABSENT = "broken"  # sends nothing that can be used: what it costs to do without these clients
ATTACKS = (
    ABSENT,
    "under",
    "cap",
    "steady",
    "size-lie",
    "measurements",
    "rate-lie",
    "sleeper",
    "backdoor",
)
COLUMNS = ("absent", *ATTACKS[1:])
METHODS = ("fedavg", "scaffold", "fedpolicy", "autopilot", "page")
NO_MEASUREMENTS = ("fedavg", "scaffold")  # their servers read nothing but the models
RULES = ("none", "rule")
BEST_RULE = "trust"  # of the study `attacks`
SYNTHETIC = {
    "task": "synthetic",
    "executor": "stacked",
    "clients": 100,
    "rounds": 40,
    "epochs": 1,
    "eval_every": 40,
    "threads": 1,
}
PAGE = {"rounds": 20, "eval_every": 20}  # a round costs ten times as much
FEDPOLICY = {"model": "mlp"}  # it treats blocks of a model
FEW_CLIENTS = (5, 10, 19, 20, 50)
FEW_SEEDS = (61, 62, 63, 64, 65)
FEW_ATTACKS = (ABSENT, "under", "cap", "size-lie")


def options(method: str, rule: str, attack: str, seed: int) -> dict[str, Any] | None:
    """Return the options of a cell, or None where a method reads no report."""
    if method in NO_MEASUREMENTS and attack.startswith("measurements"):
        return None
    chosen: dict[str, Any] = {**SYNTHETIC, "method": method, "seed": seed}
    if method == "fedpolicy":
        chosen |= FEDPOLICY
    if method == "page":
        chosen |= PAGE
    if rule != "none":
        chosen["robust"] = BEST_RULE
    if attack != "none":
        chosen["attack"] = attack
    return chosen


def few_options(size: int, attack: str, seed: int) -> dict[str, Any]:
    """Return the options of FedAvg with a few clients, one of which may be hostile."""
    chosen = {**SYNTHETIC, "method": "fedavg", "clients": size, "seed": seed}
    if attack != "none":
        chosen["attack"] = f"{attack}:{1 / size}"
    return chosen


def cells(results: Results) -> Iterable[Cell]:
    """Yield few clients, one of 100 by default, then larger shares with the rule and without."""
    attacks = ["none", *FEW_ATTACKS]
    yield from grid(few_options, size=FEW_CLIENTS, attack=attacks, seed=FEW_SEEDS)
    for seed in SEEDS:
        clean = set()
        for share in SHARES:
            for rule in RULES[:1] if share == SHARES[0] else reversed(RULES):
                # With a rule nobody is absent: what they would know is the same.
                attacks = [f"{attack}:{share}" for attack in ATTACKS[rule != "none" :]]
                if rule not in clean:
                    attacks = ["none", *attacks]
                    clean.add(rule)
                yield from grid(options, method=METHODS, rule=(rule,), attack=attacks, seed=(seed,))


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Run a cell and return accuracy in %, replies left out, and the success of a backdoor."""
    found = run(cell.options, folder).summary
    result = {"global": percent(found["global"]), "left_out": found["dropped_updates"]}
    if found.get("backdoor") is not None:
        result["backdoor"] = round(100 * found["backdoor"], 2)
    return result


def _costs(results: Results, method: str, rule: str, attack: str) -> list[float]:
    """Return points below the run of the same seed without rule and attack."""
    here = results.where(method=method)
    clean = {r["seed"]: r["global"] for r in here if (r["rule"], r["attack"]) == ("none", "none")}
    return [
        clean[r["seed"]] - r["global"]
        for r in here
        if r["rule"] == rule and r["attack"] == attack and r["seed"] in clean
    ]


def _cost_table(rule: str, share: float) -> Any:
    """Return a table of points lost, methods by attacks."""

    def made(results: Results) -> list[str]:
        rows = []
        for method in METHODS:
            costs = [_costs(results, method, rule, f"{attack}:{share}") for attack in ATTACKS]
            if any(costs):
                clean = [
                    r["global"]
                    for r in results.where(method=method)
                    if (r["rule"], r["attack"]) == (rule, "none")
                ]
                seeds = max(len(values) for values in costs)
                rows.append([method, spread(clean), *map(spread, costs), seeds])
        return table(["method", "nobody attacks, %", *COLUMNS, "seeds"], rows)

    return made


def few_clients(results: Results) -> list[str]:
    """Return the points that one hostile client costs by the number of clients."""
    rows = []
    for size in FEW_CLIENTS:
        here = results.where(size=size)
        clean = {r["seed"]: r["global"] for r in here if r["attack"] == "none"}
        costs = [
            spread(clean[r["seed"]] - r["global"] for r in here if r["attack"] == attack)
            for attack in FEW_ATTACKS
        ]
        rows.append([size, spread(clean.values()), *costs, len(clean)])
    return table(["clients", "nobody attacks, %", "absent", *FEW_ATTACKS[1:], "seeds"], rows)


def summary(results: Results) -> list[str]:
    """Return the largest mean cost over attacks on the model, by share."""
    rows = []
    for method in METHODS:
        for share in SHARES:
            for rule in RULES:
                costs = {
                    attack: mean(_costs(results, method, rule, f"{attack}:{share}"))
                    for attack in ATTACKS[1:]
                }
                absent = mean(_costs(results, method, "none", f"{ABSENT}:{share}"))
                known = {attack: cost for attack, cost in costs.items() if cost is not None}
                if known:
                    worst = max(known, key=lambda attack, known=known: known[attack])  # type: ignore[misc]
                    cost = f"{known[worst]:.1f}"
                    without = "-" if absent is None else f"{absent:.1f}"
                    rows.append([method, share, rule, worst, cost, without, len(known)])
    columns = ["worst attack", "points lost", "lost without these clients", "attacks run"]
    return table(["method", "share", "rule", *columns], rows)


def backdoors(results: Results) -> list[str]:
    """Return the success of backdoors by method, share and rule."""
    rows = []
    for method in METHODS:
        for share in SHARES:
            found = results.where(method=method, attack=f"backdoor:{share}")
            rates = {
                rule: spread([r["backdoor"] for r in found if r["rule"] == rule]) for rule in RULES
            }
            if found:
                rows.append([method, share, *rates.values()])
    return table(["method", "share", "without a rule", "with the rule"], rows)


STUDY = Study(
    name="adaptive",
    cells=cells,
    measure=measure,
    tables={
        "summary": summary,
        "few_clients": few_clients,
        "backdoors": backdoors,
        "one": _cost_table("none", 0.01),
        "ten": _cost_table("none", 0.1),
        "ten_rule": _cost_table("rule", 0.1),
        "thirty": _cost_table("none", 0.3),
        "thirty_rule": _cost_table("rule", 0.3),
    },
)
