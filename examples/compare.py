"""Compare methods over seeds: the two customers' accuracies, one table, one report.

python examples/compare.py [folder of the result] [rounds]
"""

import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import equipoise
from equipoise.report.page import html

METHODS: dict[str, dict[str, Any]] = {"fedavg": {}, "scaffold": {}, "ditto": {"lam": 0.1}, "local": {}}
SEEDS = 2


def main(out: str = "runs/example-compare", rounds: str = "40") -> None:
    print(f"{'method':10} {'global':>8} {'personal':>9} {'worst decile':>13}")
    for method, options in METHODS.items():
        summaries = [
            equipoise.run(
                Path(out) / method / f"seed-{seed}",
                overwrite=True,
                method=method,
                seed=seed,
                rounds=int(rounds),
                clients=30,
                **options,
            )
            for seed in range(SEEDS)
        ]
        personal = 100 * fmean(s.personal.acc for s in summaries)
        worst = 100 * fmean(s.personal.p10 for s in summaries)
        provider = [s.global_.acc for s in summaries if s.global_]  # Local has no global model
        written = f"{100 * fmean(provider):6.1f} %" if provider else "—"
        print(f"{method:10} {written:>8} {personal:7.1f} % {worst:11.1f} %")
    print("report:", html.write([Path(out)], Path(out) / "report.html"))


if __name__ == "__main__":
    main(*sys.argv[1:])
