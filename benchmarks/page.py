"""PAGE, its ablations and our controller on Logistic on Synthetic, beside the paper's figures.

Every cell (a variant, a seed) is a small JSON file under results/page, so that the work can stop and go on.

    python benchmarks/page.py                 # run what is missing, in the order below, then write README.md
    python benchmarks/page.py --only equilib  # the variants whose name contains this
    python benchmarks/page.py --table         # README.md alone
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

import torch

from equipoise.records.codec import encode
from equipoise.runs.certificate import certify
from equipoise.runtime.round import Schedule, Simulation
from equipoise.settings.config import Settings
from page_report import RESULTS, page

EVERY = 10

FRESH = (11, 12, 13, 14, 15)  # never looked at before the settings were fixed
THREE = FRESH[:3]

PAGE: dict[str, Any] = {"method": "page", "window": 0}
SHARED: dict[str, Any] = {"method": "page-shared", "window": 0}
MISFIT: dict[str, Any] = {"method": "equilibrium", "lr_low": 0.002, "lr_high": 0.02}
VARIANTS: dict[str, tuple[dict[str, Any], int, tuple[int, ...]]] = {
    # name: options, rounds, seeds (of data and all else)
    "equilibrium-zero": ({"method": "equilibrium"}, 300, FRESH),
    "equilibrium-learned": ({"method": "equilibrium", "control": "learned"}, 300, FRESH),
    "equilibrium-random": ({"method": "equilibrium", "control": "random"}, 300, FRESH),
    "fedavgm-97": ({"method": "fedavgm", "server_momentum": 0.97, "epochs": 8}, 300, FRESH),
    "fedavg": ({"method": "fedavg"}, 300, THREE),
    "page": (PAGE, 300, FRESH),
    "page-bias-10-1": (PAGE | {"bias": "10:1"}, 300, FRESH),
    "page-bias-1-10": (PAGE | {"bias": "1:10"}, 300, THREE),
    "page-as-published": (PAGE | {"as_published": True}, 300, THREE),
    "dapfl": ({"method": "dapfl"}, 300, THREE),
    "page-resources": (PAGE | {"resources": "default"}, 300, THREE),
    # Prices that never rise: what the agents would spend if nobody asked.
    "page-resources-unpriced": (PAGE | {"resources": "default", "multiplier_rate": 1e-9}, 300, THREE),
    "page-only-p": (PAGE | {"adapt": "p"}, 300, THREE),
    "page-only-eta": (PAGE | {"adapt": "eta"}, 300, THREE),
    "page-only-alpha": (PAGE | {"adapt": "alpha"}, 300, THREE),
    "page-alpha-eta": (PAGE | {"adapt": "alpha,eta"}, 300, THREE),
    # A rule whose rates are five times too small, as a user's first guess may be: does learning repair it?
    "misfit-zero": (MISFIT, 300, FRESH),
    "misfit-learned": (MISFIT | {"control": "learned"}, 300, FRESH),
    "misfit-random": (MISFIT | {"control": "random"}, 300, FRESH),
    "page-until-settled": ({"method": "page"}, 1000, THREE),
    "page-1000-rounds": (PAGE, 1000, THREE),
    "fedavg-1000-rounds": ({"method": "fedavg"}, 1000, THREE),
    "page-50-clients": (PAGE | {"clients": 50}, 300, THREE),
    "equilibrium-50-clients": ({"method": "equilibrium", "clients": 50}, 300, THREE),
    "equilibrium-1000-clients": ({"method": "equilibrium", "clients": 1000}, 300, (11,)),
    "page-1000-clients": (PAGE | {"clients": 1000}, 100, (11,)),  # its server scores every upload: 4 s a round
    "page-shared": (SHARED, 300, THREE),
    "page-shared-1000-clients": (SHARED | {"clients": 1000}, 300, (11,)),
    # The rule's first default; its two results are why seeds 1 and 2 are not among the fresh ones.
    "equilibrium-5-epochs": ({"method": "equilibrium", "local_epochs": 5}, 300, (1, 2)),
}


def run(options: dict[str, Any], rounds: int, seed: int) -> dict[str, Any]:
    settings = Settings.of({**options, "task": "synthetic", "rounds": rounds, "seed": seed, "eval_every": EVERY})
    task = settings.task_spec.build(settings.task_config, settings.run.model, settings.training, seed)
    settings.method.check(task, settings.training)
    schedule = Schedule(rounds, seed, 1.0, "stacked", EVERY, False)
    simulation = Simulation(settings.method, task, settings.training, schedule)
    curve, seconds, stop, budget = [], 0.0, None, []
    for _ in range(rounds):
        log = simulation.round()
        seconds += log.seconds
        if log.evaluated:
            accuracies = [round(100 * log.named(name).acc, 3) for name in ("global", "trained", "received", "personal")]
            curve.append([log.round, *accuracies])
        if "excess" in log.notes:
            over = [excess > 0 for excess in log.notes["excess"]]
            prices = log.notes["multiplier"]
            budget.append([statistics.fmean(over), statistics.fmean(prices), statistics.fmean(log.notes["joules"])])
        if log.stop:
            stop = log.round
            break
    cell = {
        "options": options,
        "rounds": rounds,
        "seed": seed,
        "global": curve[-1][1],
        "local": curve[-1][2],
        "received": curve[-1][3],
        "personal": curve[-1][4],
        "stopped": stop,
        "seconds": round(seconds, 1),
        "certificate": encode(certify(simulation)),
        "curve": curve,
    }
    if budget:  # share of clients above their budget, mean multiplier and energy, in every tenth round
        cell["budget"] = [[round(value, 5) for value in row] for row in budget[::EVERY]]
    return cell


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="variants whose name contains this")
    parser.add_argument("--table", action="store_true", help="write the page alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name, (options, rounds, seeds) in VARIANTS.items():
        for seed in seeds:
            path = RESULTS / f"{name}-seed{seed}.json"
            if arguments.table or arguments.only not in name or path.exists():
                continue
            cell = run(options, rounds, seed)
            path.write_text(json.dumps(cell) + "\n")
            print(
                f"{name} seed {seed}: {cell['global']:.2f} / {cell['local']:.2f} ({cell['seconds']:.0f} s)", flush=True
            )
    text = page()
    (RESULTS / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
