"""Compare methods over seeds: the two customers' accuracies, one table, one report.

python examples/compare.py [folder of the result] [rounds]
"""

import sys

import equipoise as eq


def main(out: str = "runs/example-compare", rounds: str = "40") -> None:
    compared = eq.compare(
        methods=["fedavg", "scaffold", eq.methods.Ditto(lam=0.1), "local"],
        task=eq.Task.from_name("synthetic", clients=30),
        seeds=2,
        rounds=int(rounds),
        out=out,
        overwrite=True,
    )
    print(compared.table())
    for label, difference in compared.paired("personal", against="fedavg").items():
        if difference is not None:
            low, high = difference.low, difference.high
            print(
                f"{label}: {difference.mean:+.1f} points against fedavg ({low:+.1f} to {high:+.1f})"
            )
    print("report:", compared.report())


if __name__ == "__main__":
    main(*sys.argv[1:])
