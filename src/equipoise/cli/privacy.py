"""``equipoise privacy``: plan the noise of a private run."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

from equipoise.cli.json_output import add_json, print_json
from equipoise.cli.parser import Parser, run_subcommand
from equipoise.privacy.config import PrivacyConfig
from equipoise.privacy.planning import RoundPlan, choose_noise
from equipoise.utils.errors import UsageError

ROUND_FACTORS = (0.25, 0.5, 1.0, 2.0)
"""Rows of the table: multiples of the planned rounds."""
MAX_PLANNED = 10**6  # clients or rounds
CLIENT_LEVEL = (
    "client-level: neighbours differ in all the data of one client; an example-level epsilon "
    "cannot be compared with it"
)


def privacy(arguments: list[str]) -> int:
    """Run one of the subcommands of ``equipoise privacy``.

    Args:
        arguments: Subcommand and its options.

    Returns:
        The exit code.
    """
    about = "Plan differential privacy before a run. See docs/how-to/privacy.md."
    return run_subcommand("privacy", about, {"plan": _plan}, arguments)


def _plan(arguments: list[str]) -> int:
    """Print noise and epsilon for several numbers of rounds and cohorts."""
    values = _plan_parser().parse(arguments)
    _check_plan(values)
    rows = _plan_rows(values)
    if values.json:
        print_json(delta=values.dp_delta, level="client", plans=rows)
        return 0
    print(f"{'rounds':>8} {'cohort':>8} {'noise':>9} {'epsilon':>9} {'epsilon_server':>15}")
    for row in rows:
        print(
            f"{row['rounds']:>8} {row['cohort']:>8} {row['noise']:>9.4g} {row['epsilon']:>9.4g} "
            f"{row['epsilon_server']:>15.4g}"
        )
    print(
        f"epsilon is that of the global models, epsilon_server of the uploads as the server sees "
        f"them; delta {values.dp_delta:g}; {CLIENT_LEVEL}"
    )
    return 0


def _plan_parser() -> Parser:
    """Return the parser of ``equipoise privacy plan``."""
    about = "Show noise, rounds, cohort and epsilon of a planned run. Nothing is trained."
    parser = Parser("privacy plan", about)
    parser.add_argument("--clients", type=int, required=True, help="number of clients")
    parser.add_argument("--rounds", type=int, default=100, help="rounds (default: 100)")
    parser.add_argument(
        "--participation", type=float, default=1.0, help="share of clients per round (default: 1)"
    )
    parser.add_argument(
        "--max-epsilon", type=float, default=0.0, help="epsilon for which noise is chosen"
    )
    parser.add_argument(
        "--dp-noise", type=float, default=0.0, help="noise for which epsilon is computed"
    )
    parser.add_argument("--dp-delta", type=float, default=1e-5, help="delta (default: 1e-5)")
    parser.add_argument(
        "--secure", action="store_true", help="the server sees sums of uploads only"
    )
    parser.add_argument(
        "--deployment",
        action="store_true",
        help="on Flower, where clients know who is drawn into a round",
    )
    add_json(parser)
    return parser


def _check_plan(values: Namespace) -> None:
    """Raise ``UsageError`` for values out of range."""
    if (values.max_epsilon > 0) == (values.dp_noise > 0):
        raise UsageError("give either --max-epsilon or --dp-noise, as a number above 0")
    if not 1 <= values.clients <= MAX_PLANNED or not 1 <= values.rounds <= MAX_PLANNED:
        raise UsageError(f"clients and rounds must be from 1 to {MAX_PLANNED:,}")
    if not 0 < values.participation <= 1:
        raise UsageError(f"participation is {values.participation:g}: must be in (0, 1]")
    if values.dp_delta >= 1 / values.clients:
        raise UsageError(
            f"dp_delta is {values.dp_delta:g}: must be below 1/{values.clients}, one over the "
            "clients"
        )


def _plan_rows(values: Namespace) -> list[dict[str, float | None]]:
    """Return noise and epsilon of the planned rounds and cohorts, and of some more."""
    config = PrivacyConfig(
        dp_clip=1.0,  # epsilon does not depend on it
        dp_noise=values.dp_noise,
        dp_delta=values.dp_delta,
        max_epsilon=values.max_epsilon,
    )
    rows: list[dict[str, float | None]] = []
    for participation in sorted({values.participation, min(1.0, 2 * values.participation), 1.0}):
        for factor in ROUND_FACTORS:
            plan = RoundPlan(
                values.clients,
                participation,
                max(1, round(factor * values.rounds)),
                amplified=not values.deployment,
                secure=values.secure,
            )
            noise = values.dp_noise or choose_noise(plan, config)
            spent = plan.privacy_spent(replace(config, dp_noise=noise))
            rows.append(
                {
                    "rounds": plan.rounds,
                    "cohort": plan.cohort_size,
                    "noise": noise,
                    "epsilon": spent.epsilon,
                    "epsilon_server": spent.epsilon_server,
                }
            )
    return rows
