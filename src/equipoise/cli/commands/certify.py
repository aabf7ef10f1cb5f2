"""``equipoise certify``: what would a player of a finished run gain by deviating alone?"""

from __future__ import annotations

from pathlib import Path

from equipoise.cli.parser import Parser


def main(arguments: list[str]) -> int:
    parser = Parser("certify", "What any player of a finished run would gain by deviating alone.")
    parser.add_argument("folder", help="the run's folder")
    parser.add_argument("--samples", type=int, default=16, help="deviations that each player tries (default: 16)")
    chosen = parser.parse(arguments)
    from equipoise.runs.certify import certify_run

    for line in certify_run(Path(chosen.folder), chosen.samples):
        print(line)
    return 0
