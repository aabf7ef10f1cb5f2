"""PAGE's tables 1 and 2 (column Synthetic), ours beside the published figures, from committed comparisons.

    python benchmarks/table1.py        # writes benchmarks/results/synthetic/README.md

The comparisons themselves (resumable with --resume; their ``compare.json`` is kept, not the run folders):

    equipoise compare --task synthetic --methods $METHODS --seeds 3 --rounds 200 --finetune --out runs/default
    equipoise tune --methods $TUNED --trials 8 --rounds 40 --eval-every 5 --seed 100 --out runs/tuned
    equipoise compare --task synthetic --methods $TUNED --tuned runs/tuned --seeds 3 --rounds 200 --finetune \
        --out runs/tuned-table
"""

from __future__ import annotations

import json
from pathlib import Path

from equipoise.records.codec import decode
from equipoise.records.summary import Summary
from equipoise.report import paired, tables

RESULTS = Path(__file__).parent / "results" / "synthetic"
PAPER = {  # global %, local %, convergence round (tables 1 and 2; about 900 rounds, 210 training samples a client)
    "fedavg": (91.46, 95.26, 902),
    "fedprox": (91.48, 95.49, 896),
    "scaffold": (97.37, 95.71, 878),
    "feddyn": (97.57, 94.11, 901),
    "dapfl": (92.19, 94.14, 900),
    "pfedme": (85.59, 90.23, 843),
    "ditto": (92.09, 95.56, 491),
    "fedala": (85.51, 95.42, 501),
    "page": (92.67, 96.24, 891),
}


ROUNDS = ("rounds to converge: global", "rounds to converge")


def section(name: str, title: str) -> list[str]:
    """One comparison as a table, best first, with the paper's figures and the paired differences."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return []
    kept = json.loads(path.read_text())
    by_method = {name: [decode(Summary, tree) for tree in each] for name, each in kept["summaries"].items()}
    shown = tables.columns(next(iter(by_method.values()))[0])
    wanted = ("global %", "personal %", "fine-tuned %", "worst decile %", *ROUNDS)
    picked = [next(c for c in shown if c.title == title) for title in wanted]
    rows = tables.rows(by_method, picked)
    order = sorted(rows, key=lambda m: -((rows[m][0].mean or 0) + (rows[m][1].mean or 0)))
    lines = [f"## {title}", "", f"`{' '.join(kept['command'])}`", ""]
    if "options" in kept:
        lines += ["| method | options found |", "|---|---|"]
        lines += [f"| {m} | {', '.join(f'{k} {v:.4g}' for k, v in o.items())} |" for m, o in kept["options"].items()]
        lines.append("")
    heads = ["method", *wanted, "paper: global %", "paper: local %", "paper: round"]
    lines += ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for method in order:
        published = [f"{v:g}" for v in PAPER.get(method, ())] or ["—"] * 3
        lines.append("| " + " | ".join([method, *map(str, rows[method]), *published]) + " |")
    lines += [paired.to_markdown(by_method, picked[:2]), ""]
    return lines


def main() -> None:
    text = [
        "# Logistic on Synthetic: every method that suits",
        "",
        "100 clients, 189 training, 21 validation and 90 test samples each, 7,500 test samples at the server;",
        "200 rounds, seeds 0 to 2, mean ± standard deviation. Published figures are at about 900 rounds and with 210",
        "training samples, so that levels are not comparable one to one. Written by `python benchmarks/table1.py`.",
        "",
        *section("default", "Defaults of the methods"),
        *section("tuned", "Tuned: 8 trials of 40 rounds each on validation data, data seed 100"),
    ]
    (RESULTS / "README.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
