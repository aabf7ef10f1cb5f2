"""PAGE under each reading of the paper, its controls without learning, and FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cell import percent, run
from benchmarks.lab.tables import as_options, made_at, paired, spread, table
from equipoise.methods.page.page import GameVariant, Page


@dataclass(frozen=True)
class RewardLevel(Page):
    """The reading `relative`, but with the paper's reward 1/f and gamma 0.99."""

    name: ClassVar[str] = "page-reward-level"

    @cached_property
    def variant(self) -> GameVariant:
        return GameVariant(reward_is_improvement=False)


@dataclass(frozen=True)
class FreeWeights(Page):
    """The reading `relative`, but with a weight for each client, p_i ~ n_i 1.5^a."""

    name: ClassVar[str] = "page-free-weights"

    @cached_property
    def variant(self) -> GameVariant:
        return GameVariant(exponent_weights=False)


@dataclass(frozen=True)
class Absolute(Page):
    """The reading `relative`, but with actions in the paper's full range."""

    name: ClassVar[str] = "page-absolute"

    @cached_property
    def variant(self) -> GameVariant:
        return GameVariant(relative_actions=False)


SEEDS = (11, 12, 13, 14, 15)
RELATIVE: dict[str, Any] = {"method": "page", "control": "learned", "window": 0}
EACH = RELATIVE | {"agents": "per-client"}
VARIANTS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "relative": RELATIVE,
    "relative-zero": RELATIVE | {"control": "zero"},
    "relative-random": RELATIVE | {"control": "random"},
    "relative-each": EACH,
    "reward-level": RELATIVE | {"method": f"{__name__}:RewardLevel"},
    "free-weights": RELATIVE | {"method": f"{__name__}:FreeWeights"},
    "free-weights-random": RELATIVE | {"method": f"{__name__}:FreeWeights", "control": "random"},
    "absolute": RELATIVE | {"method": f"{__name__}:Absolute"},
    "absolute-zero": RELATIVE | {"method": f"{__name__}:Absolute", "control": "zero"},
    "absolute-random": RELATIVE | {"method": f"{__name__}:Absolute", "control": "random"},
    "paper-shared": RELATIVE | {"reading": "paper", "agents": "shared"},
    "paper-each": RELATIVE | {"reading": "paper"},
    "paper-train": RELATIVE | {"reading": "paper", "measured_on": "train"},
    "paper-zero": RELATIVE | {"reading": "paper", "control": "zero"},
    "paper-random": RELATIVE | {"reading": "paper", "control": "random"},
    "authors-code": RELATIVE | {"reading": "authors-code"},
    "authors-code-zero": RELATIVE | {"reading": "authors-code", "control": "zero"},
    "authors-code-random": RELATIVE | {"reading": "authors-code", "control": "random"},
}
FIRST = ("fedavg", "relative", "relative-zero", "relative-random")
SMALL: dict[str, Any] = {"val_share": 0.1, "epochs": 2, "pool": 2, "clients": 20}
FMNIST: dict[str, Any] = {
    **SMALL,
    "task": "fmnist",
    "model": "mlp",
    "train_rows": 12_000,
    "lr": 0.1,
    "rounds": 50,
    "executor": "stacked",
}
CIFAR: dict[str, Any] = {
    **SMALL,
    "task": "cifar100",
    "model": "cnn",
    "train_rows": 10_000,
    "server_rows": 2000,
    "lr": 0.05,
    "batch_size": 32,
    "delta": 0.3,
    "rounds": 25,
    "executor": "loop",
}
SYNTHETIC = {"task": "synthetic", "executor": "stacked", "rounds": 300}
COLUMNS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[int, ...]]] = {
    "synthetic-300": (SYNTHETIC, tuple(VARIANTS), SEEDS),
    "synthetic-900": (SYNTHETIC | {"rounds": 900}, FIRST, SEEDS),
    "fmnist": (FMNIST | {"delta": 0.3}, tuple(VARIANTS), SEEDS[:3]),
    "cifar100": (CIFAR, FIRST, SEEDS[:3]),
}
SIDES = {"global": "global", "local": "trained", "personal": "personal"}
PAPER = {
    "fedavg": (91.46, 95.26),
    "relative": (92.67, 96.24),
}  # table 1, Synthetic at about 900 rounds


def options(column: str, variant: str, seed: int) -> dict[str, Any] | None:
    own, variants, seeds = COLUMNS[column]
    if variant not in variants or seed not in seeds:
        return None
    every = {"eval_every": own["rounds"] // 10, "checkpoint_every": 10**6, "save_personal": False}
    return {**own, **every, **VARIANTS[variant], "seed": seed}


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    done = run(cell.options, folder)
    curve = [
        [log["round"], *(percent(log[name], 3) for name in SIDES.values())]
        for log in done.evaluated
    ]
    return {**dict(zip(SIDES, curve[-1][1:], strict=True)), "curve": curve}


def accuracies(column: str) -> Any:
    def made(results: Results) -> list[str]:
        rows = []
        for name in COLUMNS[column][1]:
            if cells := results.where(column=column, variant=name):
                figures = [spread([r[side] for r in cells], 2) for side in SIDES]
                published = PAPER.get(name, ()) if column == "synthetic-900" else ()
                paper = " / ".join(f"{value:.2f}" for value in published) or None
                seeds = ", ".join(str(r["seed"]) for r in cells)
                own = as_options(VARIANTS[name])
                rows.append([name, own, seeds, *figures, paper, made_at(cells)])
        head = [
            "variant",
            "options",
            "seeds",
            "global %",
            "local %",
            "personal %",
            "paper",
            "commit",
        ]
        return table(head, rows) if rows else ["Not run yet."]

    return made


def pairs(results: Results) -> list[str]:
    rows = []
    for column, (_, variants, _) in COLUMNS.items():
        for one, other in (
            *((name, "fedavg") for name in variants if name != "fedavg"),
            ("relative", "relative-zero"),
            ("relative", "relative-random"),
        ):
            ours, theirs = (results.where(column=column, variant=name) for name in (one, other))
            if seeds := {r["seed"] for r in ours} & {r["seed"] for r in theirs}:
                figures = [paired(ours, theirs, side, 2) for side in ("global", "local")]
                rows.append([column, f"{one} − {other}", len(seeds), *figures])
    return table(["", "difference", "seeds", "global", "local"], rows)


STUDY = Study(
    name="readings",
    cells=lambda results: grid(options, column=COLUMNS, variant=VARIANTS, seed=SEEDS),
    measure=measure,
    tables={
        "synthetic": accuracies("synthetic-300"),
        "longer": accuracies("synthetic-900"),
        "fmnist": accuracies("fmnist"),
        "cifar": accuracies("cifar100"),
        "pairs": pairs,
    },
)
