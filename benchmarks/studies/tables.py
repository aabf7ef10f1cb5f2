"""Natural federations: hospitals, regions, airlines, people; repeated splits, every client by name,
pooled training.

On the split that FLamby published, its own figures stand beside ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.families import DATA
from benchmarks.gathered import NETWORK, SCIKIT, gathered_scores
from benchmarks.lab import Cell, Results, Study
from benchmarks.lab.cell import run
from benchmarks.lab.cells import Record
from benchmarks.lab.tables import mean, paired, spread, table
from benchmarks.published import FLAMBY, published_split
from equipoise.records.run_dir import RunFolder
from equipoise.report.statistics import PairedDifference, paired_difference
from equipoise.utils.metrics import higher_is_better

Clients = Mapping[int, Mapping[str, Any]]
"""By split: the metric of each client by name."""
REPEATED = {"heart": 20, "brca": 20, "late": 10, "delay": 10, "watch": 3}
"""Splits of each; those whose runs are dear have fewer."""
METHODS = (
    "fedavg",
    "local",
    "finetune",
    "fedprox",
    "scaffold",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "ditto",
    "fedala",
    "fedper",
    "autopilot",
    "page",
    "fedpolicy",
)
JUDGED = 5
"""Splits below which nobody's gain is judged: the interval of two is as wide as one likes."""
OWN = ("autopilot", "page", "fedpolicy")
"""Ours (two are completions of papers), whose best has an aim (see :func:`judged`)."""
OUTSIDE = (NETWORK, *SCIKIT)

FILES: dict[str, dict[str, Any]] = {
    "heart": {
        **{
            "data": "heart_disease.csv",
            "client_column": "hospital",
            "target": "num > 0",
            "metric": "auc",
        },
        **{"categories": "cp,restecg,slope,thal", "ignore_columns": "flamby_split"},
        **{
            "model": "linear",
            "rounds": 20,
            "epochs": 2,
            "batch_size": 16,
            "lr": 0.05,
            "standardise": "client",
        },
    },
    "brca": {
        **{"data": "tcga_brca.csv", "client_column": "region", "target": "T", "event": "E"},
        **{"ignore_columns": "flamby_split", "small_clients": "keep"},
        **{"model": "linear", "rounds": 20, "epochs": 2, "batch_size": 32, "lr": 0.05},
    },
    "late": {
        **{
            "data": "nycflights13_sample.parquet",
            "client_column": "carrier",
            "target": "arr_delay > 15",
        },
        **{"metric": "auc", "small_clients": "drop", "min_rows": 100},
        **{"model": "mlp", "rounds": 10, "epochs": 1, "batch_size": 64, "lr": 0.1},
    },
    "delay": {
        **{
            "data": "nycflights13_sample.parquet",
            "client_column": "carrier",
            "target": "arr_delay",
        },
        **{"target_type": "regression", "small_clients": "drop", "min_rows": 100},
        **{"model": "mlp", "rounds": 10, "epochs": 1, "batch_size": 64, "lr": 0.02},
    },
    "watch": {
        **{"data": "watch.npz", "client_column": "subject", "target": "exercise"},
        **{"model": "cnn1d", "rounds": 30, "epochs": 1, "batch_size": 32, "lr": 0.1},
    },
}
KNOWN_AFTERWARDS = "dep_time,dep_delay,arr_time,air_time,dest,time_hour"
"""Columns of flights that say how late it was, or that are names."""
HEADLINES = {"heart": "auc", "brca": "concordance", "late": "auc", "delay": "rmse", "watch": "acc"}
SHOWN = {
    "heart": ("acc", "auc", "ece"),
    "brca": ("concordance",),
    "late": ("auc", "balanced_acc"),
    "watch": ("acc", "f1"),
}
SHOWN["delay"] = ("rmse", "mae", "r2")


def options(data: str, seed: int) -> dict[str, Any]:
    file = FILES[data]
    if data in ("late", "delay"):
        file = {**file, "ignore_columns": KNOWN_AFTERWARDS}
    return {
        "task": "tables",
        **file,
        "data": str(DATA / "tables" / file["data"]),
        "seed": seed,
        "eval_every": file["rounds"],
    }


def suited(data: str) -> list[str]:
    """A linear model has no head to keep or to redistribute; scikit-learn
    has no model of survival.
    """
    left_out = {"fedper", "fedpolicy"} if FILES[data]["model"] == "linear" else set()
    if data == "brca":
        left_out |= set(SCIKIT)
    if data == "watch":  # whose cells take minutes
        left_out |= {
            "fedprox",
            "fedyogi",
            "fedadagrad",
            "fedala",
            "page",
            "fedpolicy",
            "boosting, pooled",
        }
    return [method for method in (*METHODS, *OUTSIDE) if method not in left_out]


def cells(results: Results) -> list[Cell]:
    """Split by split, so that whenever time is up all methods have the same splits."""
    found = [
        Cell({"data": data, "method": method, "split": "flamby"})
        for data in FLAMBY
        for method in suited(data)
        if method not in OUTSIDE
    ]
    for data, splits in REPEATED.items():
        for seed in range(splits):
            for method in suited(data):
                given = options(data, seed)
                axes = {"data": data, "method": method, "seed": seed}
                found.append(
                    Cell(axes, given if method in OUTSIDE else {**given, "method": method})
                )
    return found


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Scores of the personal models by name, each client's headline, steps and bytes."""
    axes = cell.axes
    if "split" in axes:
        return published_split(axes["data"], axes["method"])
    if axes["method"] in OUTSIDE:
        return _gathered(axes["data"], axes["method"], cell.options)
    done, head = run(cell.options, folder), HEADLINES[axes["data"]]
    summary, clients = done.summary, RunFolder(folder).read_table(RunFolder(folder).clients)
    names = RunFolder(folder).read_names()
    column = clients[f"personal_{head}"]
    return {
        "personal": _rounded(summary["personal"]),
        "global": _rounded(summary["global"]) if summary.get("global") else None,
        "constant": _number(fmean(clients[f"constant_{head}"])),
        "clients": {
            names.get(int(k), str(int(k))): _number(v)
            for k, v in zip(clients["client"], column, strict=True)
        },
        "score": _number(summary["personal"][head]),
        "steps": summary["steps"],
        "megabytes": round((summary["bytes"]["up"] + summary["bytes"]["down"]) / 1e6, 3),
    }


def _gathered(data: str, method: str, given: Any) -> dict[str, Any]:
    names, scores = gathered_scores(method, given)
    means = {name: float(np.nanmean([score[name] for score in scores])) for name in scores[0]}
    head = HEADLINES[data]
    named = dict(zip(names, (_number(score[head]) for score in scores), strict=True))
    return {"personal": _rounded(means), "clients": named, "score": _number(means[head])}


def _number(value: float) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 5)


def _rounded(scores: dict[str, float]) -> dict[str, float | None]:
    return {name: _number(value) for name, value in scores.items()}


def repeated(data: str, results: Results) -> list[str]:
    """Every method: scores over splits, paired difference to FedAvg and to local training, steps
    and bytes.
    """
    head, rows = HEADLINES[data], []
    kept: dict[str, list[Record]] = {
        m: results.where(data=data, method=m) for m in (*METHODS, *OUTSIDE)
    }
    kept = {m: [r for r in found if "seed" in r.axes] for m, found in kept.items()}
    for method, found in kept.items():
        if not found:
            continue
        more = "steps" in found[0].result
        rows.append(
            [
                method,
                len(found),
                *(spread((r["personal"].get(name) for r in found), 3) for name in SHOWN[data]),
                None if method == "fedavg" else paired(found, kept["fedavg"], "score", 3),
                None if method == "local" else paired(found, kept["local"], "score", 3),
                f"{fmean(r['steps'] for r in found) / 1000:.1f}" if more else None,
                f"{fmean(r['megabytes'] for r in found):.2f}" if more else None,
            ]
        )
    if not rows:
        return ["No cells yet."]
    titles = [
        "method",
        "splits",
        *SHOWN[data],
        f"{head} - fedavg",
        f"{head} - local",
        "steps, thousands",
        "MB",
    ]
    return table(titles, rows)


def by_client(data: str, results: Results) -> list[str]:
    """The metric of every client, mean over splits."""
    kept = {
        m: [r for r in results.where(data=data, method=m) if "seed" in r.axes]
        for m in (*METHODS, *OUTSIDE)
    }
    names = list(
        dict.fromkeys(name for found in kept.values() for r in found for name in r["clients"])
    )
    rows = [
        [m, *(spread((r["clients"].get(n) for r in found), 3) for n in names)]
        for m, found in kept.items()
        if found
    ]
    return table([f"{HEADLINES[data]}", *names], rows) if rows else ["No cells yet."]


Gains = dict[str, PairedDifference]
"""By client: over the better of FedAvg and local training, mean and interval of the differences
paired by split.
"""


def gains(data: str, results: Results) -> dict[str, Gains]:
    """Of every method that has splits enough."""
    sign = 1 if higher_is_better(HEADLINES[data]) else -1
    kept: dict[str, Clients] = {
        m: {r["seed"]: r["clients"] for r in results.where(data=data, method=m) if "seed" in r.axes}
        for m in METHODS
    }
    names = list(
        dict.fromkeys(
            name for found in kept.values() for clients in found.values() for name in clients
        )
    )
    found = {}
    for method in METHODS:
        if method not in ("fedavg", "local"):
            each = (
                (n, _against_better(n, sign, kept[method], kept["fedavg"], kept["local"]))
                for n in names
            )
            found[method] = {name: gain for name, gain in each if gain is not None}
    return {method: each for method, each in found.items() if each}


def aim(data: str, results: Results) -> list[str]:
    """Every client's gain, and how many clients a method does not harm."""
    found = gains(data, results)
    names = list(dict.fromkeys(name for each in found.values() for name in each))
    rows = []
    for method, each in found.items():
        shown = (each.get(name) for name in names)
        row = [
            None if gain is None else f"{gain.mean:+.3f} ± {gain.high - gain.mean:.3f}"
            for gain in shown
        ]
        rows.append([_called(method), _at_the_aim(each), *row])
    return (
        table(["method", "clients at the aim", *names], rows)
        if rows
        else [f"Fewer than {JUDGED} splits: no interval is worth a verdict."]
    )


def judged(results: Results) -> list[str]:
    """Whether the aim was reached: by the best of our own methods, and by the best of all."""
    rows = []
    for data in FILES:
        found = gains(data, results)
        own = {method: each for method, each in found.items() if method in OWN}
        if own:
            ours, best = _best(own), _best(found)
            below = ", ".join(name for name, gain in own[ours].items() if gain.high < 0) or "nobody"
            rows.append(
                [
                    data,
                    _called(ours),
                    _at_the_aim(own[ours]),
                    below,
                    _called(best),
                    _at_the_aim(found[best]),
                ]
            )
    head = [
        "federation",
        "best of ours",
        "clients at the aim",
        "clients below it",
        "best of all",
        "clients at the aim",
    ]
    return table(head, rows)


def judged_published(results: Results) -> list[str]:
    """On FLamby's split: the mean over clients, of ours and of what was published."""
    rows = []
    for data, about in FLAMBY.items():
        ran = {
            method: fmean(record["clients"].values())
            for method in METHODS
            for record in results.where(data=data, method=method, split="flamby")
        }
        own = {method: value for method, value in ran.items() if method in OWN}
        published = {
            name: fmean(float(figure) for figure in figures[: len(about.clients)])
            for name, figures in about.figures.items()
            if not name.endswith(("pooled training", "local"))
        }
        chosen = (
            max(each, key=lambda name: each[name]) if each else None
            for each in (own, ran, published)
        )
        cells = zip(chosen, (own, ran, published), strict=True)
        rows.append(
            [
                data,
                *(
                    None if name is None else f"{_called(name)} {each[name]:.3f}"
                    for name, each in cells
                ),
            ]
        )
    return table(
        ["federation", "best of ours", "best of all that ran here", "best published federated"],
        rows,
    )


def _called(method: str) -> str:
    return f"**{method}**" if method in OWN else method


def _at_the_aim(each: Gains) -> str:
    return f"{sum(gain.high >= 0 for gain in each.values())} of {len(each)}"


def _best(found: dict[str, Gains]) -> str:
    """By the mean gain of its clients."""
    return max(found, key=lambda method: fmean(gain.mean for gain in found[method].values()))


def _against_better(
    name: str, sign: int, ours: Clients, *others: Clients
) -> PairedDifference | None:
    """Paired by split, as gains: against whichever of the others is better for this client on
    average.
    """

    def scores(kept: Clients) -> dict[int, float]:
        return {
            seed: sign * clients[name]
            for seed, clients in kept.items()
            if clients.get(name) is not None
        }

    mine, candidates = scores(ours), [scores(other) for other in others]
    common = sorted(set(mine).intersection(*candidates))
    if len(common) < JUDGED:
        return None
    best = max(candidates, key=lambda found: fmean(found[seed] for seed in common))
    return paired_difference([mine[seed] for seed in common], [best[seed] for seed in common])


def on_published(data: str, results: Results) -> list[str]:
    """The published split: five first models, means; FLamby's figures below."""
    about = FLAMBY[data]
    rows: list[list[Any]] = []
    for method in METHODS:
        for record in results.where(data=data, method=method, split="flamby"):
            figures = (*(record["clients"][client] for client in about.clients), record["pooled"])
            rows.append(
                [method, *(None if figure is None else f"{figure:.3f}" for figure in figures)]
            )
    rows += [[f"*{name}*", *figures] for name, figures in about.figures.items()]
    average = "mean of clients"
    shown = [[*row, _mean_of(row[1 : 1 + len(about.clients)])] for row in rows]
    return table(["method", *about.clients, "pooled test", average], shown)


def _mean_of(cells: list[Any]) -> str | None:
    value = mean([float(cell) for cell in cells if cell not in (None, "-")])
    return None if value is None else f"{value:.3f}"


STUDY = Study(
    name="tables",
    cells=cells,
    measure=measure,
    tables={
        **{data: partial(repeated, data) for data in FILES},
        **{f"{data}_clients": partial(by_client, data) for data in FILES},
        "judged": judged,
        "judged_published": judged_published,
        **{f"{data}_aim": partial(aim, data) for data in FILES},
        **{f"{data}_published": partial(on_published, data) for data in FLAMBY},
    },
)
