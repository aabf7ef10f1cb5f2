"""``equipoise train-policy``: weights for autopilot's correction of the rate, trained across federations."""

from __future__ import annotations

import math
import sys
from dataclasses import fields

from equipoise.cli.parser import Parser, add_quiet, output_file

ABOUT = (
    "Train the policy of autopilot on many small federations that are drawn at random, by an evolution strategy. "
    "The result is a small file for --policy. The same command goes on where an earlier one was stopped."
)


def main(arguments: list[str]) -> int:
    from equipoise.core.options import rule_of
    from equipoise.runs.train_policy import Search, train
    from equipoise.runtime.device import available_cores

    parser = Parser("train-policy", ABOUT)
    parser.add_argument("--out", default="policy.safetensors", help="file of the policy (default: policy.safetensors)")
    for item in fields(Search):
        text = f"{rule_of(item).help} (default: {item.default})"
        parser.add_argument(f"--{item.name}", type=int, default=item.default, help=text)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no generation after so long (default: no bound)"
    )
    cores = available_cores()
    parser.add_argument(
        "--processes", type=int, default=cores, help=f"federations at the same time (default: the cores, here {cores})"
    )
    add_quiet(parser)
    chosen = parser.parse(arguments)
    search = Search(**{item.name: getattr(chosen, item.name) for item in fields(Search)})
    out = output_file(chosen.out)

    def told(number: int, mean: float, rule: float) -> None:
        if not chosen.quiet:
            print(f"generation {number}/{search.generations}  accuracy {mean:.2f}, of the rule {rule:.2f}", flush=True)

    try:
        done = train(search, out, chosen.minutes, chosen.processes, told)
    except KeyboardInterrupt:
        print("interrupted; go on with the same command", file=sys.stderr)
        return 1
    if not chosen.quiet:
        print(f"{done} of {search.generations} generations; equipoise run --method autopilot --policy {out}")
    return 0
