"""``equipoise tune``: search for good options of methods on validation data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from equipoise.cli.parser import Parser, add_config, add_means, add_quiet, means_of
from equipoise.cli.several import several
from equipoise.experiment.runner import Interrupted
from equipoise.experiment.tune import tune


def main(arguments: list[str]) -> int:
    parser = Parser(
        "tune",
        "Search for good options of methods on validation data; options that are given stay fixed.",
    )
    parser.add_argument(
        "--trials", type=int, default=12, help="settings tried for each method (default: 12)"
    )
    parser.add_argument(
        "--out", default="runs/tune", help="folder of the searches (default: runs/tune)"
    )
    add_config(parser)
    add_means(parser)
    add_quiet(parser)
    chosen, cells = several(arguments, parser)

    means = means_of(chosen)

    def told(method: str, number: int, score: float | None, tried: dict[str, Any]) -> None:
        if not chosen["quiet"]:
            text = "  ".join(f"{k}={v:.4g}" for k, v in tried.items())
            print(
                f"{method}  trial {number}/{chosen['trials']}  {'—' if score is None else f'{score:.4f}'}  {text}"
            )

    for method, given in cells.items():
        try:
            best = tune(method, given, chosen["trials"], Path(chosen["out"]) / method, told, means)
        except (Interrupted, KeyboardInterrupt):
            print("interrupted; go on with the same command", file=sys.stderr)
            return 1
        if not chosen["quiet"]:
            print(
                f"{method}: best "
                + "  ".join(f"--{k.replace('_', '-')} {v:.4g}" for k, v in best.items())
            )
    return 0
