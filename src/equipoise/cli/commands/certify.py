"""``equipoise certify``: what would a player of a finished run gain by deviating alone?"""

from __future__ import annotations

from pathlib import Path

from equipoise.cli.parser import Parser, add_quiet

ABOUT = (
    "Measure how much any client, or the server, would gain by choosing differently while all others stay. "
    "The result is a relative gain in utility: 0 %% means that nobody would change alone, which is an equilibrium. "
    "It is printed and added to the run's summary.json."
)


def main(arguments: list[str]) -> int:
    parser = Parser("certify", ABOUT)
    parser.add_argument("folder", help="folder of a finished run")
    parser.add_argument(
        "--samples", type=int, default=16, help="other choices that each player tries (default: 16)"
    )
    add_quiet(parser)
    chosen = parser.parse(arguments)
    from equipoise.experiment.certificate import certify_run, describe
    from equipoise.report.terminal import step_progress

    with step_progress("other choices tried", chosen.quiet) as update:
        found = certify_run(Path(chosen.folder), chosen.samples, on_progress=update)
    if not chosen.quiet:
        print("\n".join([*describe(found), f"Added to {Path(chosen.folder) / 'summary.json'}."]))
    return 0
