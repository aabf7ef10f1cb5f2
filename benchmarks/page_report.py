"""The page of PAGE's results: what is in the cells of results/page, as tables. Nothing here is typed by hand."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from equipoise.report.paired import difference

Cell = dict[str, Any]
RESULTS = Path(__file__).parent / "results" / "page"
PAPER = {
    "fedavg": (91.46, 95.26),
    "page": (92.67, 96.24),
    "dapfl": (92.19, 94.14),
    "page-50-clients": (91.75, 96.62),
    "page-1000-clients": (92.39, 96.43),
}
"""Global and local accuracy of tables 1 and 4, at 600 to 930 rounds."""

SECTIONS = {
    "The paper's game and its parts": (
        "fedavg",
        "page",
        "page-as-published",
        "dapfl",
        "page-only-alpha",
        "page-only-eta",
        "page-alpha-eta",
        "page-only-p",
        "fedavg-1000-rounds",
        "page-1000-rounds",
        "page-until-settled",
    ),
    "Bias": ("page-bias-10-1", "page", "page-bias-1-10"),
    "Number of clients": (
        "page-50-clients",
        "page",
        "page-1000-clients",
        "page-shared",
        "page-shared-1000-clients",
        "equilibrium-50-clients",
        "equilibrium-zero",
        "equilibrium-1000-clients",
    ),
    "Our controller beside its controls and momentum alone": (
        "equilibrium-zero",
        "equilibrium-random",
        "equilibrium-learned",
        "fedavgm-97",
        "equilibrium-5-epochs",
    ),
    "A rule with rates five times too small (`--lr-low 0.002 --lr-high 0.02`)": (
        "misfit-zero",
        "misfit-random",
        "misfit-learned",
    ),
    "Energy budgets (appendix D)": ("page", "page-resources-unpriced", "page-resources"),
}
PAIRS = (
    ("equilibrium-learned", "equilibrium-zero"),
    ("equilibrium-learned", "equilibrium-random"),
    ("equilibrium-random", "equilibrium-zero"),
    ("equilibrium-zero", "fedavgm-97"),
    ("misfit-learned", "misfit-zero"),
    ("misfit-learned", "misfit-random"),
    ("page-bias-10-1", "page"),
    ("page-bias-1-10", "page"),
    ("page-resources", "page"),
)


def cells(variant: str) -> list[Cell]:
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{variant}-seed*.json"))]


def spread(values: list[float], digits: int = 2) -> str:
    shown = f"{statistics.fmean(values):.{digits}f}"
    return f"{shown} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else shown


def accuracies(variants: tuple[str, ...]) -> list[str]:
    lines = [
        "| variant | rounds | seeds | global % | local % | personal % | paper (global / local) |",
        "|---" * 7 + "|",
    ]
    for name in variants:
        if found := cells(name):
            figures = [spread([cell[side] for cell in found]) for side in ("global", "local", "personal")]
            rounds = ", ".join(sorted({str(cell["stopped"] or cell["rounds"]) for cell in found}))
            seeds = ", ".join(str(cell["seed"]) for cell in found)
            paper = " / ".join(f"{value:.2f}" for value in PAPER.get(name, ())) or "-"
            lines.append(f"| {name} | {rounds} | {seeds} | {' | '.join(figures)} | {paper} |")
    return lines if len(lines) > 2 else []


def paired(one: str, other: str) -> str:
    """Paired over common seeds: mean and 95 % interval of ``one`` minus ``other``, in points."""
    of_one, of_other = ({cell["seed"]: cell for cell in cells(name)} for name in (one, other))
    seeds = sorted(of_one.keys() & of_other.keys())
    parts = []
    for side in ("global", "local", "personal"):
        found = difference([of_one[seed][side] for seed in seeds], [of_other[seed][side] for seed in seeds])
        if found is None:
            return ""
        parts.append(f"{found.mean:+.2f} ± {found.high - found.mean:.2f}")
    return f"| {one} − {other} | {len(seeds)} | {' | '.join(parts)} |"


def budgets(variants: tuple[str, ...]) -> list[str]:
    lines = [
        "",
        "Clients above their energy budget, as a mean over the first and the last fifth of the rounds:",
        "",
        "| variant | seeds | above budget, first fifth | above budget, last fifth | last multiplier | joules a round |",
        "|---" * 6 + "|",
    ]
    for name in variants:
        found = [cell for cell in cells(name) if "budget" in cell]
        if found:
            fifth = len(found[0]["budget"]) // 5
            early, late = (
                [100 * statistics.fmean(row[0] for row in cell["budget"][part]) for cell in found]
                for part in (slice(fifth), slice(-fifth, None))
            )
            prices = [cell["budget"][-1][1] for cell in found]
            joules = [statistics.fmean(row[2] for row in cell["budget"][-fifth:]) for cell in found]
            row = [name, str(len(found)), f"{spread(early, 1)} %", f"{spread(late, 1)} %", spread(prices)]
            lines.append(f"| {' | '.join([*row, spread(joules, 3)])} |")
    return lines if len(lines) > 5 else []


def certificates() -> list[str]:
    lines = [
        "| variant | seeds | largest client gain | mean client gain | server's gain, its utility | the aggregate's |",
        "|---" * 6 + "|",
    ]
    for name in dict.fromkeys(name for names in SECTIONS.values() for name in names):
        found = [cell["certificate"] for cell in cells(name) if "server" in cell.get("certificate", {})]
        if found:
            columns = (
                [cell["clients"]["largest"] for cell in found],
                [cell["clients"]["mean"] for cell in found],
                [cell["server"]["gain"] for cell in found],
                [cell["server"]["gain_of_the_aggregate"] for cell in found],
            )
            figures = [f"{100 * statistics.fmean(values):.1f} %" for values in columns]
            lines.append(f"| {' | '.join([name, str(len(found)), *figures])} |")
    return lines


def trained() -> list[str]:
    """A policy trained on small federations (benchmarks/metatrain.py): on new ones as small, and at the usual size."""
    if not (RESULTS / "metatrain.json").exists():
        return []
    kept = json.loads((RESULTS / "metatrain.json").read_text())
    lines = [
        "",
        "## A policy trained before the run, on small federations",
        "",
        "`python benchmarks/metatrain.py`: in each generation the policy of those before runs beside the rule on a new",
        "federation (30 clients, 60 rounds); at the end both run at the usual size (100 clients, 300 rounds).",
        "",
        "| data seed | size | rule, global / local % | trained policy, global / local % |",
        "|---" * 4 + "|",
    ]
    groups = (("30 clients, 60 rounds", kept["generations"]), ("100 clients, 300 rounds", kept.get("usual size", [])))
    for size, rows in groups:
        for row in rows:
            figures = [" / ".join(f"{value:.2f}" for value in row[name]) for name in ("rule", "trained")]
            lines.append(f"| {row['seed']} | {size} | {' | '.join(figures)} |")
    return lines


def pendulum() -> list[str]:
    """Our DDPG beside a peer's (tests/control/test_pendulum.py): mean return of each agent as it learns."""
    if not (RESULTS / "pendulum.json").exists():
        return []
    curves = json.loads((RESULTS / "pendulum.json").read_text())
    lines = [
        "",
        "## DDPG on Pendulum-v1 beside Stable-Baselines3",
        "",
        "`python -m pytest -m slow tests/control/test_pendulum.py`: return of three agents, over ten fixed episodes.",
        "",
        f"| steps | {' | '.join(curves)} |",
        "|---" * (1 + len(curves)) + "|",
    ]
    for rows in zip(*curves.values(), strict=True):
        returns = [" / ".join(f"{value:.0f}" for value in row[1:]) for row in rows]
        lines.append(f"| {rows[0][0]:.0f} | {' | '.join(returns)} |")
    return lines


def speed() -> list[str]:
    kept = json.loads((RESULTS / "speed.json").read_text())
    return ["```json", json.dumps(kept, indent=1), "```"]


def page() -> str:
    lines = [
        "# PAGE and equilibrium on Logistic on Synthetic",
        "",
        "`python benchmarks/page.py`; defaults of the task, evaluation every 10 rounds. The last round is shown,",
        "mean ± standard deviation over data seeds. *global*: the global model on the server's test set; *local*: the",
        "clients' models right after training, on their own test rows; *personal*: the models that clients keep. Our",
        "rule's settings were chosen on data seeds 101 and 102 (docs/methods/equilibrium.md); seeds 11 to 15 were not",
        "looked at before. The paper's figures are at 600 to 930 rounds.",
    ]
    for title, variants in SECTIONS.items():
        if table := accuracies(variants):
            lines += ["", f"## {title}", "", *table]
            if title.startswith("Energy"):
                lines += budgets(variants)
    pairs = [row for pair in PAIRS if (row := paired(*pair))]
    lines += [
        "",
        "## Paired differences, in points, with 95 % intervals",
        "",
        "| difference | seeds | global | local | personal |",
        "|---" * 5 + "|",
        *pairs,
        "",
        "## Certificates",
        "",
        "The largest relative gain of utility that a player gets by deviating alone from its last strategy (16 samples",
        "each, mean over seeds); the paper's utility 1 / f is steep where losses are small.",
        "",
        *certificates(),
        *trained(),
        *pendulum(),
        "",
        "## Speed of a PAGE round",
        "",
        "`python benchmarks/page_speed.py`:",
        "",
        *speed(),
    ]
    return "\n".join(lines) + "\n"
