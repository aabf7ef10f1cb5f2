"""Adaptive baselines beside autopilot: the same few settings for each, the best of which is kept
for all families.

The budget is equal: four settings for each method, on the same development seeds of the same
families.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from benchmarks.lab import Cell, Results

Setting = dict[str, Any]
RATES: list[Setting] = [{"server_rate": rate, "epochs": 8} for rate in (0.01, 0.03, 0.1, 0.3)]
SETTINGS: dict[str, list[Setting]] = {
    "fedavgm": [{"server_momentum": m, "epochs": 8} for m in (0.5, 0.8, 0.9, 0.97)],
    "fedadam": RATES,
    "fedyogi": RATES,
    "fedexp": [
        {"epsilon": epsilon, "epochs": epochs} for epsilon in (0.001, 0.1) for epochs in (1, 8)
    ],
    "fedhyper": [
        {"side": side, "epochs": epochs} for side in ("global", "local") for epochs in (1, 8)
    ],
    "fedex": [{"epochs": epochs} for epochs in (1, 4, 8, 20)],
}
SEARCHED = {"synthetic-10": (1,), "heart-linear": (1, 2, 3), "heart-mlp": (1, 2, 3), "watch": (1,)}
COMPARED = (
    "synthetic-10",
    "synthetic-30",
    "heart-linear",
    "heart-mlp",
    "watch",
    "flights",
    "fmnist-skew-mlp",
)
SEEDS = (100, 101, 102, 103)


def cells(results: Results) -> list[Cell]:
    """The search of every method, and, once it is done, fresh seeds at its best setting."""
    found = []
    for method, settings in SETTINGS.items():
        search = [
            Cell(
                {"family": family, "variant": f"{method}#{number}", "seed": seed},
                {"method": method, **setting},
            )
            for number, setting in enumerate(settings)
            for family, seeds in SEARCHED.items()
            for seed in seeds
        ]
        found += search
        if all(cell.name in results for cell in search):
            options = {"method": method, **settings[best(results, method)]}
            found += [
                Cell({"family": family, "variant": method, "seed": seed}, options)
                for family in COMPARED
                for seed in SEEDS
            ]
    return found


def best(results: Results, method: str) -> int:
    """The setting with the highest accuracy, global and personal alike, over the families that were
    searched.
    """

    def score(number: int) -> float:
        return fmean(
            fmean((record["global"] or 0) + (record["personal"] or 0) for record in kept)
            for family in SEARCHED
            if (kept := results.where(family=family, variant=f"{method}#{number}"))
        )

    return max(range(len(SETTINGS[method])), key=score)
