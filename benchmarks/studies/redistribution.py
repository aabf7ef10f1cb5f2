"""FedPolicy's policies beside schedules, parts and baselines, with rates that fall for all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.lab import Cell, Record, Results, Study, grid
from benchmarks.lab.cell import percent, run
from benchmarks.lab.tables import mean, spread, table
from benchmarks.studies.fedpolicy import CIFAR10 as CIFAR10_CNN
from benchmarks.studies.fedpolicy import SCENARIOS, SETTING, relative_gain
from equipoise.report.statistics import paired_difference

FRESH = (76, 77, 78)
"""Seeds on which policies are judged. Numbers were chosen on other ones."""
CHOOSING = (61, 62)
"""Seeds that decide which baseline is the strongest in a population."""
DEFAULT = "gate"
"""The default of fedpolicy."""
SCHEDULE = "full:0.8,none"
"""The schedule beside which policies are shown."""
FALLING = SETTING | {"lr": "cosine(0.1, 0.001)"}
PAPER_SIZE = FALLING | {"pool": 1, "train_rows": 12000, "rounds": 100, "lr": "cosine(0.05, 0.0005)"}
PAPER = {f"28x28-{labels}": PAPER_SIZE for labels in ("L.1", "L.3", "L.5")}
CIFAR10 = CIFAR10_CNN | {"pool": 1, "train_rows": 6000, "rounds": 60, "lr": "cosine(0.1, 0.001)"}
CIFAR100 = CIFAR10 | {"task": "cifar100", "clients": 20}
CIFAR = {"cifar10-L.3": CIFAR10, "cifar100-L.1": CIFAR100}
LARGER = {**PAPER, **CIFAR}
POPULATIONS: dict[str, dict[str, Any]] = {**dict.fromkeys(SCENARIOS, FALLING), **LARGER}
BASELINES: dict[str, dict[str, Any]] = {
    name: {"method": name}
    for name in (
        "fedavg",
        "finetune",
        "fedper",
        "local",
        "lgfedavg",
        "ditto",
        "scaffold",
        "feddbe",
        "fedrep",
        "fedprox",
        "fedala",
        "fedbabu",
    )
}
BASELINES["fedavgm"] = {"method": "fedavgm", "server_momentum": 0.5}
BASELINES["feddbe"] = {"method": "feddbe", "kappa": 1.0}  # better than 50 on seed 31
OTHER_VALUES: dict[str, dict[str, Any]] = {
    "ditto-0.3": {"method": "ditto", "lam": 0.3},
    "ditto-3": {"method": "ditto", "lam": 3.0},
    "feddbe-0.1": {"method": "feddbe", "kappa": 0.1},
    "feddbe-10": {"method": "feddbe", "kappa": 10.0},
    "fedavgm-0.8": {"method": "fedavgm", "server_momentum": 0.8},
    "fedavgm-0.9": {"method": "fedavgm", "server_momentum": 0.9},
    "finetune-0.03": {"method": "finetune", "tune_lr": 0.03},
    "finetune-0.1": {"method": "finetune", "tune_lr": 0.1},
}
"""The strong baselines with two other values each of their own option."""
BASELINES |= OTHER_VALUES
RARELY_STRONG = ("fedrep", "fedprox", "fedala", "fedbabu")
"""Baselines that were nowhere the strongest in the study fedpolicy; computed last."""
POLICIES: dict[str, dict[str, Any]] = {
    name: {"method": "fedpolicy", "policy": name} for name in ("gate", "trained", "dqn")
}
SCHEDULES = {
    name: {"method": "fedpolicy", "policy": name}
    for name in ("full:0.8,none", "full:0.8,backbone", "full:0.5,none")
}
CONTROLS: dict[str, dict[str, Any]] = {
    "random": {"method": "fedpolicy", "policy": "random"},
    "gate-plain-averages": {"method": "fedpolicy", "policy": "gate", "block_weights": "off"},
    "gate-over-fedavg": {"method": "fedpolicy", "policy": "gate", "base": "fedavg"},
    "gate-momentum-0.5": {
        "method": "fedpolicy",
        "policy": "gate",
        "base": "fedavgm",
        "base_options": "server_momentum=0.5",
    },
}
JOINT: dict[str, dict[str, Any]] = {
    "joint": {"method": "joint", "lr": 0.1},
    "autopilot": {"method": "autopilot", "lr": 0.1},
}
CLAIMANTS = (*POLICIES, *SCHEDULES, *CONTROLS)
AT_LARGER_SIZE = (
    *("gate", SCHEDULE, "fedavg", "finetune", "fedper", "local", "ditto"),
    *("fedavgm", "lgfedavg", "feddbe"),
)
VARIANTS = {**POLICIES, **SCHEDULES, **BASELINES, **CONTROLS, **JOINT}


def options(population: str, variant: str, seed: int) -> dict[str, Any] | None:
    if population in LARGER and (variant not in AT_LARGER_SIZE or seed != FRESH[0]):
        return None
    if seed in CHOOSING and variant not in BASELINES:
        return None
    every = {"eval_every": 6, "checkpoint_every": 10**6, "finetune": True}
    scenario = population.rpartition("-")[2]
    setting = {**POPULATIONS[population], **every, "scenario": scenario, "seed": seed}
    return {**setting, **VARIANTS[variant]}


def cells(results: Results) -> list[Cell]:
    """First what the main table needs: rivals on a choosing seed, the default and its rivals."""
    every = grid(options, population=POPULATIONS, variant=VARIANTS, seed=(*CHOOSING, *FRESH))
    rivals_of = {
        population: {
            *(strongest(results, population, key) for key in ("personal", "tuned")),
            strongest(results, population, "personal", without=("finetune",)),
        }
        for population in POPULATIONS
    }

    def order(cell: Cell) -> tuple[int, int]:
        population, variant, seed = (cell.axes[name] for name in ("population", "variant", "seed"))
        rivals = rivals_of[population]
        if population in LARGER:
            return 6, seed
        if variant in BASELINES and variant not in RARELY_STRONG and seed == CHOOSING[0]:
            return 0, seed
        if variant in (DEFAULT, "trained", SCHEDULE, "fedavg") or (
            variant in rivals and seed in FRESH
        ):
            return (1 if seed == FRESH[0] else 2), seed
        if variant in RARELY_STRONG or seed == CHOOSING[1]:
            return 5, seed
        return (3 if seed == FRESH[0] else 4), seed

    return sorted(every, key=order)


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    done = run(cell.options, folder)
    spent = 0
    curve = []
    for log in done.logs:
        spent += log["bytes"]["down"] + log["bytes"]["up"]
        if "trained" in log:
            curve.append([log["round"], percent(log["personal"]), percent(log["global"]), spent])
    notes = [log.get("logged", {}) for log in done.logs]
    parts = [note["part"] for note in notes if "part" in note]
    last = done.logs[-1]
    return {
        "personal": percent(last["personal"], 6),
        "p10": percent(last["personal"], 6, "p10"),
        "tuned": percent(done.summary["finetuned"], 6),
        "global": percent(last["global"], 6),
        **done.summary["bytes"],
        "full_share": fmean(part == 0 for row in parts for part in row) if parts else None,
        "parts": parts[::5] or None,
        "curve": curve,
    }


def found(
    results: Results, population: str, variant: str, seeds: Iterable[int] = FRESH
) -> list[Record]:
    """Return the cells of a variant."""
    chosen = results.where(population=population, variant=variant)
    return [record for record in chosen if record["seed"] in set(seeds)]


def strongest(
    results: Results, population: str, key: str, without: tuple[str, ...] = ()
) -> str | None:
    """Return the baseline that was best on the seeds `CHOOSING`, or None without cells.

    For the populations of a larger size those of the usual size decide.

    Args:
        results: Cells of this study.
        population: The population.
        key: `personal` or `tuned`.
        without: Baselines that do not count.
    """
    scenario = population.rpartition("-")[2]
    means = {}
    for name in BASELINES:
        value = mean(record[key] for record in found(results, scenario, name, CHOOSING))
        if value is not None and name not in without:
            means[name] = value
    return max(means, key=lambda name: means[name]) if means else None


def gains(
    results: Results,
    claimant: str,
    key: str,
    among: Iterable[str],
    without: tuple[str, ...] = (),
) -> dict[str, float]:
    """Return the relative gain over the strongest baseline by population, in percent.

    Only seeds count that both have.
    """
    values = {}
    for population in among:
        rival = strongest(results, population, key, without)
        if rival is None:
            continue
        ours = found(results, population, claimant)
        gain = relative_gain(ours, found(results, population, rival), key)
        if gain is not None:
            values[population] = gain
    return values


def relative(key: str, without: tuple[str, ...] = ()) -> Any:
    def made(results: Results) -> list[str]:
        names = [name for name in CLAIMANTS if gains(results, name, key, POPULATIONS, without)]
        rows: list[list[Any]] = []
        for population in POPULATIONS:
            rival = strongest(results, population, key, without)
            if rival is None or not found(results, population, rival):
                continue
            level = spread(record[key] for record in found(results, population, rival))
            row: list[Any] = [population, f"{rival} {level}"]
            for name in names:
                gain = gains(results, name, key, [population], without).get(population)
                row.append(None if gain is None else f"{gain:+.2f} %")
            rows.append(row)
        for title, pick in (("average", fmean), ("smallest", min), ("largest", max)):
            values = [list(gains(results, n, key, SCENARIOS, without).values()) for n in names]
            row = [f"**{title}, nine populations**", None]
            for own in values:
                count = f" ({len(own)})" if len(own) < len(SCENARIOS) else ""
                row.append(f"{pick(own):+.2f} %{count}" if own else None)
            rows.append(row)
        return table(["population", "strongest on other seeds", *names], rows)

    return made


def on_nine(results: Results, variant: str) -> list[Record]:
    """Return the cells of a variant in the nine populations."""
    return [record for name in SCENARIOS for record in found(results, name, variant)]


def beside_default(results: Results) -> list[str]:
    """Every other policy less the default, paired by population and seed."""
    rows = []
    for name in (*(policy for policy in CLAIMANTS if policy != DEFAULT), *JOINT):
        row: list[Any] = [name]
        for key in ("personal", "tuned", "global"):
            mine, other = (
                {(r["population"], r["seed"]): r[key] for r in on_nine(results, variant)}
                for variant in (name, DEFAULT)
            )
            common = sorted(mine.keys() & other.keys())
            pairs = paired_difference([mine[c] for c in common], [other[c] for c in common])
            if pairs is None:
                row.append(None)
            else:
                row.append(f"{pairs.mean:+.2f} ± {pairs.high - pairs.mean:.2f} ({len(common)})")
        rows.append(row)
    return table(["policy", "personal", "fine-tuned", "global"], rows)


def global_beside_fedavg(results: Results) -> list[str]:
    """Return global accuracy less FedAvg's, over all runs that both have."""
    rows: list[list[Any]] = []
    for name in (*POLICIES, *SCHEDULES, "fedavgm"):
        differences = {}
        for population in POPULATIONS:
            base = {r["seed"]: r["global"] for r in found(results, population, "fedavg")}
            for record in found(results, population, name):
                if record["seed"] in base:
                    run_name = f"{population}, seed {record['seed']}"
                    differences[run_name] = record["global"] - base[record["seed"]]
        if differences:
            worst = min(differences, key=lambda run_name: differences[run_name])
            below = sum(value < -1.0 for value in differences.values())
            average = f"{fmean(differences.values()):+.1f}"
            smallest = f"{differences[worst]:+.1f} ({worst})"
            rows.append([name, len(differences), average, smallest, below])
    return table(["policy", "runs", "mean", "smallest", "more than a point below"], rows)


def scores(key: str) -> Any:
    def made(results: Results) -> list[str]:
        rows: list[list[Any]] = []
        for name in VARIANTS:
            values = [spread(r[key] for r in found(results, p, name)) for p in POPULATIONS]
            if any(value != "-" for value in values):
                rows.append([name, *values])
        return table(["variant", *POPULATIONS], rows)

    return made


def first_reached(record: Record, goal: float, column: int) -> float | None:
    """Return round (0) or bytes (3) of the first evaluation whose personal accuracy is the goal."""
    return next((point[column] for point in record["curve"] if point[1] >= goal), None)


def costs(results: Results) -> list[str]:
    """Rounds and megabytes until shares of FedAvg's best personal accuracy, on the same seeds."""
    rows: list[list[Any]] = []
    for population in POPULATIONS:
        best = {
            record["seed"]: max(point[1] for point in record["curve"])
            for record in found(results, population, "fedavg")
        }
        for name in (DEFAULT, SCHEDULE, "fedavg", "fedper", "finetune"):
            records = [r for r in found(results, population, name) if r["seed"] in best]
            if not records:
                continue
            row: list[Any] = [population, name]
            for share in (0.8, 0.9, 0.95):
                goals = [share * best[record["seed"]] for record in records]
                both = []
                for column, unit in ((0, 1.0), (3, 1e6)):
                    pairs = zip(records, goals, strict=True)
                    reached = [first_reached(record, goal, column) for record, goal in pairs]
                    known = [value / unit for value in reached if value is not None]
                    both.append(f"{fmean(known):.0f}" if len(known) == len(reached) else "never")
                row.append(" / ".join(both))
            rows.append(row)
    return table(["population", "variant", "to 80 %", "to 90 %", "to 95 %"], rows)


STUDY = Study(
    name="redistribution",
    cells=cells,
    measure=measure,
    tables={
        "relative_tuned": relative("tuned"),
        "relative_plain": relative("personal"),
        "relative_unadapted": relative("personal", without=("finetune",)),
        "beside_default": beside_default,
        "global_beside_fedavg": global_beside_fedavg,
        "personal": scores("personal"),
        "tuned": scores("tuned"),
        "global": scores("global"),
        "costs": costs,
    },
)
