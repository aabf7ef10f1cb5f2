"""FedPolicy's policies beside schedules, parts and baselines, with rates that fall for all."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.lab import Cell, Record, Results, Study, grid
from benchmarks.lab.cell import percent, run
from benchmarks.lab.provenance import RESULTS
from benchmarks.lab.tables import mean, spread, table
from benchmarks.studies import fedpolicy
from benchmarks.studies.fedpolicy import SCENARIOS, SETTING, relative_gain
from equipoise.report.statistics import paired_difference

FRESH = (71, 72, 73)
"""Seeds that nobody had looked at before policy and schedules were finished."""
DEFAULT = "full:0.8,none"
"""The default of fedpolicy."""
FALLING = SETTING | {"lr": "cosine(0.1, 0.001)"}
PAPER_SIZE = FALLING | {"pool": 1, "train_rows": 12000, "rounds": 100, "lr": "cosine(0.05, 0.0005)"}
PAPER = {f"28x28-{labels}": PAPER_SIZE for labels in ("L.1", "L.3", "L.5")}
POPULATIONS: dict[str, dict[str, Any]] = {**dict.fromkeys(SCENARIOS, FALLING), **PAPER}
BASELINES: dict[str, dict[str, Any]] = {
    name: {"method": name} for name in ("fedavg", "fedper", "lgfedavg", "local", "finetune")
}
BASELINES["fedavgm"] = {"method": "fedavgm", "server_momentum": 0.5}
MORE_BASELINES: dict[str, dict[str, Any]] = {
    name: {"method": name} for name in ("fedprox", "scaffold", "fedrep", "fedbabu", "ditto")
}
SCHEDULES = {
    name: {"method": "fedpolicy", "policy": name}
    for name in ("full:0.8,none", "full:0.8,backbone", "full:0.5,none")
}
POLICIES: dict[str, dict[str, Any]] = {
    name: {"method": "fedpolicy", "policy": name} for name in ("trained", "dqn", "endgame")
}
CONTROLS: dict[str, dict[str, Any]] = {"random": {"method": "fedpolicy", "policy": "random"}}
JOINT: dict[str, dict[str, Any]] = {
    "joint": {"method": "joint", "lr": 0.1},
    "autopilot": {"method": "autopilot", "lr": 0.1},
}
CLAIMANTS = (*POLICIES, *SCHEDULES, *CONTROLS)
VARIANTS = {
    **POLICIES,
    **SCHEDULES,
    **BASELINES,
    **CONTROLS,
    **MORE_BASELINES,
    **JOINT,
}


def options(population: str, variant: str, seed: int) -> dict[str, Any] | None:
    if population in PAPER and variant in ("dqn", "endgame", "random", *JOINT):
        return None
    every = {"eval_every": 6, "checkpoint_every": 10**6, "finetune": True}
    scenario = population.rpartition("-")[2]
    setting = {**POPULATIONS[population], **every, "scenario": scenario, "seed": seed}
    return {**setting, **VARIANTS[variant]}


def cells(results: Results) -> list[Cell]:
    """The nine populations before the paper's size, and the main variants before the others."""
    every = grid(options, population=POPULATIONS, variant=VARIANTS, seed=FRESH)
    later = (*MORE_BASELINES, *JOINT, *CONTROLS, "dqn", "endgame")

    def order(cell: Cell) -> tuple[bool, bool, int]:
        axes = cell.axes
        return axes["population"] in PAPER, axes["variant"] in later, axes["seed"]

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


@cache
def earlier_results() -> Results:
    """Return the cells of the study fedpolicy."""
    return Results(RESULTS / "fedpolicy")


@cache
def strongest(population: str, key: str) -> str | None:
    """Return the baseline that was best on other seeds, 11 to 13, in the study fedpolicy.

    Rates were constant there. Of the populations at the paper's size the 14x14 ones decide.
    """
    means = {}
    for name in BASELINES:
        records = fedpolicy.found(earlier_results(), population.rpartition("-")[2], name)
        value = mean(record["last" if key == "personal" else key] for record in records)
        if value is not None:
            means[name] = value
    return max(means, key=lambda name: means[name]) if means else None


def gains(results: Results, claimant: str, key: str, among: Iterable[str]) -> dict[str, float]:
    """Return the relative gain over the strongest baseline by population, in percent."""
    values = {}
    for population in among:
        rival = strongest(population, key)
        if rival is None:
            continue
        ours = found(results, population, claimant)
        gain = relative_gain(ours, found(results, population, rival), key)
        if gain is not None:
            values[population] = gain
    return values


def relative(key: str) -> Any:
    def made(results: Results) -> list[str]:
        names = [name for name in CLAIMANTS if gains(results, name, key, POPULATIONS)]
        rows: list[list[Any]] = []
        for population in POPULATIONS:
            rival = strongest(population, key)
            if rival is None or not found(results, population, rival):
                continue
            level = spread(record[key] for record in found(results, population, rival))
            row: list[Any] = [population, f"{rival} {level}"]
            for name in names:
                gain = gains(results, name, key, [population]).get(population)
                row.append(None if gain is None else f"{gain:+.2f} %")
            rows.append(row)
        for title, pick in (("average", fmean), ("smallest", min), ("largest", max)):
            values = [list(gains(results, name, key, SCENARIOS).values()) for name in names]
            row = [f"**{title}, nine populations**", None]
            rows.append([*row, *(f"{pick(own):+.2f} %" if own else None for own in values)])
        return table(["population", "strongest on other seeds", *names], rows)

    return made


def on_nine(results: Results, variant: str) -> list[Record]:
    """Return the cells of a variant in the nine populations."""
    return [record for name in SCENARIOS for record in found(results, name, variant)]


def beside_schedule(results: Results) -> list[str]:
    """Each policy less the schedule full:0.8,none, paired by population and seed."""
    rows = []
    for name in CLAIMANTS:
        row: list[Any] = [name]
        for key in ("personal", "tuned", "global"):
            mine, other = (
                {(r["population"], r["seed"]): r[key] for r in on_nine(results, variant)}
                for variant in (name, "full:0.8,none")
            )
            common = sorted(mine.keys() & other.keys())
            pairs = paired_difference([mine[c] for c in common], [other[c] for c in common])
            if pairs is None or name == "full:0.8,none":
                row.append(None)
            else:
                row.append(f"{pairs.mean:+.2f} ± {pairs.high - pairs.mean:.2f}")
        rows.append(row)
    return table(["policy", "personal", "fine-tuned", "global"], rows)


def scores(key: str) -> Any:
    def made(results: Results) -> list[str]:
        rows: list[list[Any]] = []
        for name in VARIANTS:
            values = [spread(r[key] for r in found(results, p, name)) for p in POPULATIONS]
            if any(value != "-" for value in values):
                rows.append([name, *values])
        return table(["variant", *POPULATIONS], rows)

    return made


STUDY = Study(
    name="redistribution",
    cells=cells,
    measure=measure,
    tables={
        "relative_tuned": relative("tuned"),
        "relative_plain": relative("personal"),
        "beside_schedule": beside_schedule,
        "personal": scores("personal"),
        "tuned": scores("tuned"),
        "global": scores("global"),
    },
)
