"""Adapters over a language model of a million parameters: roles of Shakespeare's plays, who have
little to say each.

Beside it the LSTM that ships, which read the same text as often.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.tables import spread, table
from benchmarks.pretraining import base, digest, file_of
from benchmarks.studies import adapters
from benchmarks.studies.adapters import SEEDS, TUNED, best, compared, measured
from equipoise.data.datasets.shakespeare import ALPHABET, SHAKESPEARE, WINDOW
from equipoise.data.sources import cache_folder, load_dataset
from equipoise.tasks.shakespeare import ShakespeareConfig, choose_roles
from equipoise.utils import rng as streams

UNTOUCHED = ("transformer", "LSTM")  # what clients receive in the first round
LSTM_WAY = "LSTM, FedAvg"
WAYS = {way: how for way, how in adapters.WAYS.items() if not way.startswith("without")}
WAYS |= {LSTM_WAY: {"method": "fedavg"}} | {
    way: {"method": "fedavg", "rounds": 1} for way in UNTOUCHED
}
ROWS_OF_A_ROLE = 100  # of 80 characters each
ROLES: dict[str, Any] = {"clients": 6, "role_samples": 2000, "spare_samples": 6000}
BOTH: dict[str, Any] = {
    "rounds": 6,
    "epochs": 1,
    "executor": "loop",
    "checkpoint_every": 10**6,
    "eval_every": 10**6,
}
TEXT: dict[str, Any] = {"task": "text", "kind": "next-token", "length": WINDOW, "batch_size": 16}
LSTM: dict[str, Any] = {
    "task": "shakespeare",
    "model": "lstm",
    **ROLES,
    "server_rows": 100,
    "batch_size": 32,
}


def rates(way: str) -> tuple[float, ...]:
    """Learning rates that are tried; for the transformer one, that a first look at another seed
    found to do best.
    """
    if way == LSTM_WAY:
        return 0.03, 0.1, 0.3
    return (1.0,) if "adapter" in WAYS[way] else (0.05,)


def options(way: str, rate: float, seed: int) -> dict[str, Any] | None:
    """The run of a cell; ``None`` where there is none."""
    if rate not in rates(way):
        return None
    how = BOTH | {"lr": rate, **WAYS[way], "seed": seed}
    if "LSTM" in way:
        return LSTM | how | {"start": str(file_of("lstm"))}
    tuned = {"tune_lr": rate} if "fine-tuned" in way else {}
    return TEXT | how | tuned | {"pretrained": str(file_of("gpt2")), "data": str(_spoken(seed))}


def _spoken(seed: int) -> Path:
    """Where the rows of a seed's roles lie, or will."""
    return cache_folder() / f"roles-seed{seed}.csv"


def write_roles(seed: int) -> None:
    """What the same roles say whom the task `shakespeare` draws by this seed: their first rows,
    without overlap.
    """
    arrays, rng = load_dataset(SHAKESPEARE, ""), streams.generator(seed, streams.SHAKESPEARE)
    start = arrays["sizes"].cumsum() - arrays["sizes"]
    with open(_spoken(seed), "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("client", "text"))
        for role in choose_roles(arrays["sizes"] - WINDOW, ShakespeareConfig(**ROLES), rng):
            for first in range(start[role], start[role] + ROWS_OF_A_ROLE * WINDOW, WINDOW):
                codes = arrays["codes"][first : first + WINDOW]
                rows.writerow((arrays["names"][role], "".join(ALPHABET[code] for code in codes)))


def cells(results: Results) -> list[Cell]:
    """Each way's rate is chosen by validation on the first seed; the other seeds have only that
    one.
    """
    every = grid(
        options, way=WAYS, rate=sorted({rate for way in WAYS for rate in rates(way)}), seed=SEEDS
    )
    asked = [
        c
        for c in every
        if c.axes["seed"] == TUNED or c.axes["rate"] == _best(results, c.axes["way"])
    ]
    return sorted(asked, key=lambda cell: cell.axes["seed"])


def _best(results: Results, way: str) -> float | None:
    return best(results.where(way=way, seed=TUNED), rates(way))


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    used = "lstm" if "LSTM" in cell.axes["way"] else "gpt2"
    base(used)
    if used == "gpt2":
        write_roles(cell.axes["seed"])
    found = {**measured(cell, folder), "base": digest(used)}
    if cell.axes["way"] not in UNTOUCHED:
        del found["untrained"]  # for it was evaluated at the end alone
    return found


def ways(results: Results) -> list[str]:
    trained = [way for way in WAYS if way not in UNTOUCHED]
    return compared((way, results.where(way=way, rate=_best(results, way))) for way in trained)


def untouched(results: Results) -> list[str]:
    """The bases before any training, on the clients' test rows."""
    found = {way: results.where(way=way) for way in UNTOUCHED}
    rows = [
        [way, spread(r["untrained"] for r in own), len(own)] for way, own in found.items() if own
    ]
    return table(["base", "%", "seeds"], rows)


STUDY = Study(
    name="roles", cells=cells, measure=measure, tables={"ways": ways, "untouched": untouched}
)
