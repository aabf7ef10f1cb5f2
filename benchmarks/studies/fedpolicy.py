"""FedPolicy's first policies against every fixed choice, at constant rates; a record.

The study redistribution has the policies of today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.lab import Cell, Record, Results, Study, grid
from benchmarks.lab.cell import one_round_from, percent, run
from benchmarks.lab.plots import drawing
from benchmarks.lab.tables import mean, paired, spread, table
from equipoise.methods import find_method
from equipoise.utils.pytree import Params

SEEDS, FRESH = (11, 12, 13), (21, 22, 23)
SETTING: dict[str, Any] = {
    "task": "fmnist",
    "model": "mlp",
    "pool": 2,
    "train_rows": 6000,
    "val_share": 0.2,
}
SETTING |= {"epochs": 2, "lr": 0.1, "rounds": 60, "executor": "stacked"}
CNN = SETTING | {
    "model": "cnn",
    "rounds": 30,
    "lr": 0.05,
    "executor": "loop",
}  # convolutions gain nothing stacked
SCENARIOS: dict[str, dict[str, Any]] = dict.fromkeys(
    ("M3", "M1", "L.1", "F", "M2", "I", "S", "L.3", "L.5"), SETTING
)
CIFAR10 = CNN | {"task": "cifar10", "lr": 0.1}
CIFAR100 = CIFAR10 | {"task": "cifar100", "clients": 20}  # it has 100 by itself
LARGER: dict[str, dict[str, Any]] = {
    **{"cnn-M3": CNN, "cnn-L.3": CNN},
    **{f"cifar10-{labels}": CIFAR10 for labels in ("L.1", "L.3", "L.5")},
    **{f"cifar100-{labels}": CIFAR100 for labels in ("L.1", "L.3", "L.5")},
}
ALL = (*SCENARIOS, *LARGER)
CHOICES = "full,backbone,head,none"
LEARNED: dict[str, Any] = {"method": "fedpolicy", "policy": "learned"}
VARIANTS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "learned": LEARNED,
    "fedper": {"method": "fedper"},
    "lgfedavg": {"method": "lgfedavg"},
    "local": {"method": "local"},
    "learned-with-none": LEARNED | {"parts": CHOICES},
    "probe-sync": LEARNED | {"policy": "probe", "block_weights": "on", "parts": CHOICES},
    "learned-plain": LEARNED | {"block_weights": "off"},
    "dqn": LEARNED | {"policy": "dqn"},
    "learned-finetune": LEARNED | {"base": "finetune"},
    "dqn-sync": LEARNED | {"policy": "dqn", "block_weights": "on"},
    "bandit-sync": LEARNED | {"policy": "bandit", "block_weights": "on"},
    "random-sync": LEARNED | {"policy": "random", "block_weights": "on"},
    "joint": {"method": "joint"},
    "autopilot": {"method": "autopilot"},
    "finetune": {"method": "finetune"},
    "fedavgm": {"method": "fedavgm", "server_momentum": 0.5},
    **{
        name: {"method": name}
        for name in ("fedprox", "scaffold", "fedrep", "ditto", "fedala", "fedbabu")
    },
    "learned-always-probing": LEARNED | {"probe_every": 1},
}
REMOVED = tuple(
    name for name, chosen in VARIANTS.items() if chosen.get("policy") or name == "joint"
)
"""Policies that are no longer in the code, or are others now; their cells stay as a record."""
AT_LEAST = ("fedavg", "learned", "fedper", "lgfedavg", "local", "joint")
FEW_OF_LARGER = (
    *AT_LEAST,
    "fedavgm",
    "scaffold",
)  # with the MLP, the strongest where labels are skewed
FIXED = {
    "full": "fedavg",
    "backbone": "fedper",
    "head": "lgfedavg",
    "none": "local",
}  # what a fixed choice is known as
BASELINES: tuple[str, ...] = (
    "fedavg",
    "fedavgm",
    "fedprox",
    "scaffold",
    "fedper",
    "fedrep",
    "ditto",
    "fedala",
    "fedbabu",
)
BASELINES += ("lgfedavg", "local", "finetune")
CLAIMANTS = (
    "learned",
    "learned-with-none",
    "learned-finetune",
    "joint",
    "autopilot",
)  # joint without choices
THRIFTY = ("fedavg", "fedper", "finetune", "probe-sync", "learned", "learned-with-none", "joint")
LAST = 3  # evaluations whose mean is an accuracy: one alone is noisy
NEWCOMER_EPOCHS = 5


def options(scenario: str, variant: str, seed: int) -> dict[str, Any] | None:
    if scenario in LARGER and (seed in FRESH or variant not in FEW_OF_LARGER):
        return None
    if seed in FRESH and variant not in AT_LEAST:
        return None
    setting, population = (SCENARIOS | LARGER)[scenario], scenario.rpartition("-")[2]
    every = {"eval_every": 3, "checkpoint_every": 10**6, "finetune": True}
    return {**setting, **every, **VARIANTS[variant], "scenario": population, "seed": seed}


def cells(results: Results) -> list[Cell]:
    """Seed by seed: first all of one, so that every table is early there."""
    rank = {scenario: place for place, scenario in enumerate(ALL)}
    every = [
        cell
        for cell in grid(options, scenario=ALL, variant=VARIANTS, seed=(*SEEDS, *FRESH))
        if cell.axes["variant"] not in REMOVED or cell.name in results
    ]
    return sorted(
        every,
        key=lambda c: (c.axes["scenario"] in LARGER, rank[c.axes["scenario"]], c.axes["seed"]),
    )


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    done = run(cell.options, folder)
    last, summary, spent, curve = done.logs[-1], done.summary, 0, []
    for log in done.logs:
        spent += log["bytes"]["down"] + log["bytes"]["up"]
        if "trained" in log:
            curve.append([log["round"], percent(log["personal"]), percent(log["global"]), spent])
    notes = [log.get("logged", {}) for log in done.logs]
    steps = [log["steps"] for log in done.logs]
    names = ("last_probe_error", "prediction_error")
    errors = {name: mean(note.get(name) for note in notes) for name in names}
    return {
        **{
            name: percent(last["personal"], 6, key)
            for name, key in (("personal", "acc"), ("std", "std"), ("p10", "p10"))
        },
        "tuned": percent(summary["finetuned"], 6),
        "global": percent(last["global"], 6),
        "newcomer": newcomer(cell.options, done.server_model({})) if last["global"] else None,
        **summary["bytes"],
        "effort": sum(steps)
        / (len(steps) * min(steps)),  # gradient steps in proportion to those of plain rounds
        "parts": [note["part"] for note in notes] if "part" in notes[0] else None,
        "probe_errors": {name: value for name, value in errors.items() if value is not None},
        "curve": curve,
    }


def newcomer(options: Mapping[str, Any], model: Params) -> float | None:
    """Clients of a fresh draw of the same population train the global model for five epochs: their
    test accuracy.

    Their rows are drawn anew from all 60,000, so that about a tenth were some training client's.
    """
    own = {item.name for item in fields(find_method(options["method"]))}
    kept = {name: value for name, value in options.items() if name not in own}
    fresh = {
        **kept,
        "method": "local",
        "epochs": NEWCOMER_EPOCHS,
        "seed": options["seed"] + 1000,
        "finetune": False,
    }
    return percent(one_round_from(model, fresh), 6)


def final(record: Record) -> float:
    return fmean(point[1] for point in record["curve"][-LAST:])


def with_final(records: Iterable[Record]) -> list[Record]:
    return [Record(r.name, r.axes, r.config, {**r.result, "last": final(r)}) for r in records]


def found(
    results: Results, scenario: str, variant: str, seeds: tuple[int, ...] = SEEDS
) -> list[Record]:
    return with_final(
        r for r in results.where(scenario=scenario, variant=variant) if r["seed"] in seeds
    )


def smooth(record: Record) -> list[tuple[Any, float]]:
    """Each evaluation from the third on, with the mean over three."""
    points = record["curve"]
    return [(points[i], fmean(p[1] for p in points[i - 2 : i + 1])) for i in range(2, len(points))]


def converged(record: Record) -> int:
    """The first evaluation whose mean over three is within half a point of the best such mean."""
    means = smooth(record)
    best = max(value for _, value in means)
    return int(next(point[0] for point, value in means if value >= best - 0.5))


def spent_until(record: Record, goal: float) -> float | None:
    """Megabytes, down and up, until the mean over three evaluations reaches the goal."""
    return next((point[3] / 1e6 for point, value in smooth(record) if value >= goal), None)


def scenarios(results: Results) -> list[str]:
    lines = []
    head = [
        "variant",
        "seeds",
        "personal",
        "last round",
        "spread",
        "worst 10 %",
        "fine-tuned",
        "global",
        "newcomer",
    ]
    for scenario in ALL:
        rows = []
        for variant in VARIANTS:
            if own := found(results, scenario, variant):
                names = ("last", "personal", "std", "p10", "tuned", "global", "newcomer")
                traffic = [f"{fmean(r[way] for r in own) / 1e6:.1f}" for way in ("down", "up")]
                figures = [spread(r[name] for r in own) for name in names]
                rows.append(
                    [variant, len(own), *figures, f"{fmean(map(converged, own)):.0f}", *traffic]
                )
        lines += (
            [f"## {scenario}", "", *table([*head, "converged", "MB down", "MB up"], rows)]
            if rows
            else []
        )
    return lines


def against_fixed(seeds: tuple[int, ...]) -> Callable[[Results], list[str]]:
    def made(results: Results) -> list[str]:
        rows = []
        for scenario in ALL:
            fixed = {
                name: found(results, scenario, variant, seeds) for name, variant in FIXED.items()
            }
            learned = found(results, scenario, "learned", seeds)
            if not learned or not all(fixed.values()):
                continue
            best = max(fixed, key=lambda name: fmean(r["last"] for r in fixed[name]))
            gains = [
                paired(found(results, scenario, name, seeds), fixed[best], "last", 1)
                for name in CLAIMANTS
            ]
            both = (fixed["full"], learned)
            whole = " / ".join(f"{mean(r['global'] for r in group):.1f}" for group in both)
            traffic = " / ".join(
                f"{fmean(r['down'] + r['up'] for r in group) / 1e6:.0f}" for group in both
            )
            rows.append(
                [scenario, best, spread(r["last"] for r in fixed[best]), *gains, whole, traffic]
            )
        head = ["scenario", "best fixed", "its accuracy", *CLAIMANTS]
        return table([*head, "global: FedAvg / learned", "MB: FedAvg / learned"], rows)

    return made


def relative_gains(results: Results) -> list[str]:
    """Of every claimant over the strongest baseline, on the seeds that both have; then over
    populations.
    """
    rows: list[list[Any]] = []
    gains: dict[tuple[str, str], dict[str, float]] = {}
    for scenario in (scenario for scenario in ALL if found(results, scenario, "learned")):
        row: list[Any] = [scenario]
        cells = {name: found(results, scenario, name) for name in (*BASELINES, *CLAIMANTS)}
        for key in ("last", "tuned"):
            means = {name: mean(r[key] for r in cells[name]) or 0.0 for name in BASELINES}
            strongest = max(BASELINES, key=lambda name: means[name])
            row.append(f"{strongest} {means[strongest]:.1f}")
            for claimant in CLAIMANTS:
                gain = relative_gain(cells[claimant], cells[strongest], key)
                row.append(None if gain is None else f"{gain:+.2f} %")
                gains.setdefault((key, claimant), {}).update(
                    {} if gain is None else {scenario: gain}
                )
        rows.append(row)
    skewed = [scenario for scenario in ALL if scenario.rpartition("-")[2].startswith("L.")]
    for title, pick in (("average", fmean), ("largest", max)):
        for group, among in (("all", ALL), ("skewed labels", skewed)):
            row = [f"**{title}, {group}**"]
            for key in ("last", "tuned"):
                known = (
                    [gain for s, gain in gains[key, name].items() if s in among]
                    for name in CLAIMANTS
                )
                row += ["", *(f"{pick(values):+.2f} %" if values else None for values in known)]
            rows.append(row)
    tuned = [f"{claimant}, fine-tuned" for claimant in CLAIMANTS]
    return table(["scenario", "strongest", *CLAIMANTS, "strongest fine-tuned", *tuned], rows)


def relative_gain(ours: list[Record], theirs: list[Record], key: str) -> float | None:
    """In percent of the others' mean, over common seeds."""
    common = {r["seed"] for r in ours} & {r["seed"] for r in theirs}
    mine, other = (mean(r[key] for r in group if r["seed"] in common) for group in (ours, theirs))
    return None if mine is None or other is None else 100 * (mine / other - 1)


def bytes_to_targets(results: Results) -> list[str]:
    rows: list[list[Any]] = []
    for scenario in ALL:
        best = {
            r["seed"]: max(point[1] for point in r["curve"])
            for r in found(results, scenario, "fedavg")
        }
        row: list[Any] = [scenario]
        for variant in THRIFTY if best else ():
            own, texts = found(results, scenario, variant), []
            for share in (0.80, 0.90, 0.95) if own else ():
                spent = [spent_until(r, share * best[r["seed"]]) for r in own if r["seed"] in best]
                there = [value for value in spent if value is not None]
                text = f"{fmean(there):.0f}" if there else "-"
                texts.append(
                    text if len(there) == len(spent) else f"{text} ({len(there)} of {len(spent)})"
                )
            row.append(" / ".join(texts) or None)
        rows += [row] if best else []
    return table(["scenario", *THRIFTY], rows)


def parts(results: Results, path: Path) -> None:
    """Which part each client installed, round by round, under ``learned`` (first seed), in three
    populations.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colours, shown = ("#0072B2", "#56B4E9", "#E69F00", "#999999"), ("M3", "M1", "L.1")
    with drawing(path, len(shown), (10.8, 3.2)) as axes:
        for axis, scenario in zip(axes, shown, strict=True):
            given = found(results, scenario, "learned")[0]["parts"]
            columns = [list(column) for column in zip(*given, strict=True)]
            axis.imshow(
                columns,
                aspect="auto",
                cmap=ListedColormap(colours),
                vmin=-0.5,
                vmax=3.5,
                interpolation="nearest",
            )
            axis.set(title=scenario, xlabel="round", ylabel="client")
        handles = [
            Patch(color=colour, label=name) for colour, name in zip(colours, FIXED, strict=True)
        ]
        axes[0].figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)


STUDY = Study(
    name="fedpolicy",
    cells=cells,
    measure=measure,
    tables={
        "against_fixed": against_fixed(SEEDS),
        "against_fixed_fresh": against_fixed(FRESH),
        **{
            "relative_gains": relative_gains,
            "bytes_to_targets": bytes_to_targets,
            "scenarios": scenarios,
        },
    },
    figures={"parts.svg": parts},
)
