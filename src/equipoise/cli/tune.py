"""``equipoise tune``: search for good options of methods on validation data."""

from __future__ import annotations

import sys
from pathlib import Path

from equipoise.cli.json_output import Output, add_json, print_json
from equipoise.cli.options import parse_several_methods
from equipoise.cli.parser import Parser, add_config, add_quiet, add_resources, resources_from
from equipoise.experiment import tune as search
from equipoise.experiment.runner import Interrupted


def tune(arguments: list[str]) -> int:
    """Search for good options of each method; options that are given stay fixed.

    Args:
        arguments: Options of the command.

    Returns:
        The exit code.
    """
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
    add_resources(parser)
    add_quiet(parser)
    add_json(parser)
    values, cells = parse_several_methods(arguments, parser, with_models=False)
    resources = resources_from(values)
    output = Output(values["quiet"], values["json"])

    def print_trial(method: str, number: int, score: float | None, tried: dict[str, float]) -> None:
        if not output.for_people:
            return
        score_text = "—" if score is None else f"{score:.4f}"
        tried_text = "  ".join(f"{name}={value:.4g}" for name, value in tried.items())
        print(f"{method}  trial {number}/{values['trials']}  {score_text}  {tried_text}")

    best_options: dict[str, dict[str, object]] = {}
    for method, given in cells.items():
        out = Path(values["out"]) / method
        try:
            best = search.tune(method, given, values["trials"], out, print_trial, resources)
        except (Interrupted, KeyboardInterrupt):
            print("interrupted; go on with the same command", file=sys.stderr)
            return 1
        best_options[method] = best
        if output.for_people:
            flags = [f"--{name.replace('_', '-')} {value:.4g}" for name, value in best.items()]
            print(f"{method}: best {'  '.join(flags)}")
    if output.json:
        print_json(folder=values["out"], best=best_options)
    return 0
