"""What to personalise of a pretrained model: all of it, a shared adapter, a private one, both, or
what FedPolicy says.

Two populations: roles of Shakespeare's plays over a transformer that read the small roles, and
clients who see Fashion-MNIST turned and as negatives over a perceptron that saw it upright.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cell import percent, run
from benchmarks.lab.cells import Record
from benchmarks.lab.tables import spread, table
from benchmarks.pretraining import base, digest, file_of

SEEDS, TUNED = (1, 2, 3), 1
ONE, TWO = "rank=8", "rank=8 names=shared,private"
WAYS: dict[str, dict[str, Any]] = {
    "whole model, FedAvg": {"method": "fedavg"},
    "whole model, FedAvg, then fine-tuned": {"method": "finetune"},
    "whole model, local": {"method": "local"},
    "shared adapter": {"method": "fedavg", "adapter": ONE},
    "private adapter": {"method": "local", "adapter": ONE},
    "both, the private one local": {"method": "fedper", "adapter": TWO, "keep": "private"},
    "both, FedPolicy over blocks": {
        "method": "fedpolicy",
        "adapter": TWO,
        "parts": "full,shared,private",
        "policy": "full:0.8,shared",
    },
    "without the base, FedAvg": {"method": "fedavg"},
}
PLAYS: dict[str, Any] = {
    "task": "shakespeare",
    "model": "transformer",
    "clients": 6,
    "role_samples": 200,
}
PLAYS |= {
    "spare_samples": 7800,
    "server_rows": 100,
    "rounds": 3,
    "epochs": 1,
    "batch_size": 32,
    "executor": "loop",
}
PIXELS: dict[str, Any] = {
    "task": "fmnist",
    "model": "mlp",
    "pool": 2,
    "train_rows": 12_000,
    "scenario": "F",
}
PIXELS |= {"clients": 20, "rounds": 30, "epochs": 2, "executor": "stacked"}
POPULATIONS = {"plays": PLAYS, "pixels": PIXELS}
LSTM: dict[str, Any] = {"model": "lstm"}


def rates(population: str, way: str) -> tuple[float, ...]:
    """Learning rates that are tried; for plays one, that a first look at another seed found to do
    no harm.
    """
    if population == "pixels":
        return (0.05, 0.2)
    return (1.0,) if way.startswith("without") else (0.05,) if "adapter" in WAYS[way] else (0.005,)


def options(population: str, way: str, rate: float, seed: int) -> dict[str, Any] | None:
    """Who has no base trains the model of today: for characters the LSTM,
    at the rate of its paper.
    """
    if rate not in rates(population, way):
        return None
    start = {"start": str(file_of(population))}
    if way.startswith("without"):
        start = LSTM if population == "plays" else {}
    gently = {"tune_lr": rate} if "fine-tuned" in way else {}
    return {
        **POPULATIONS[population],
        "lr": rate,
        "checkpoint_every": 10**6,
        **WAYS[way],
        **gently,
        **start,
        "seed": seed,
    }


def cells(results: Results) -> list[Cell]:
    """Each way's rate is chosen by validation on the first seed; the other seeds have only that
    one.
    """
    every_rate = sorted({rate for p in POPULATIONS for way in WAYS for rate in rates(p, way)})
    every = grid(options, population=POPULATIONS, way=WAYS, rate=every_rate, seed=SEEDS)
    asked = [
        c for c in every if c.axes["seed"] == TUNED or c.axes["rate"] == _best(results, c.axes)
    ]
    return sorted(asked, key=lambda cell: (cell.axes["population"], cell.axes["seed"]))


def _best(results: Results, axes: Mapping[str, Any]) -> float | None:
    place = {"population": axes["population"], "way": axes["way"]}
    return best(results.where(**place, seed=TUNED), rates(**place))


def best(tried: list[Record], rates: tuple[float, ...]) -> float | None:
    """The rate with the best validation score of the first seed, once all are known."""
    if not tried or len(tried) < len(rates):
        return None
    found: float = max(tried, key=lambda record: record["val"])["rate"]
    return found


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    population = cell.axes["population"]
    base(population)
    return {**measured(cell, folder), "base": digest(population)}


def measured(cell: Cell, folder: Path) -> dict[str, Any]:
    """What a run reached and took."""
    before, started = _peak_from_here(), time.process_time()
    done = run(cell.options, folder)
    spent, peak = time.process_time() - started, _status("VmHWM")
    last = done.evaluated[-1]
    return {
        "personal": percent(last["personal"], 4),
        "p10": percent(last["personal"], 4, "p10"),
        "val": percent(last["val"]["personal"], 4),
        "untrained": percent(done.evaluated[0]["received"], 4),
        "megabytes": sum(done.summary["bytes"].values()) / 1e6,
        "peak_mib": peak - before,
        "cpu_seconds": spent,
        "executor": done.summary["executor"],
    }


def _peak_from_here() -> float:
    """Forget the process's highest memory so far, and what earlier cells freed; what it has now, in
    MiB.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{key}:")) / 1024


def ways(population: str) -> Any:
    def made(results: Results) -> list[str]:
        places = ({"population": population, "way": way} for way in WAYS)
        return compared(
            (place["way"], results.where(**place, rate=_best(results, place))) for place in places
        )

    return made


def compared(found: Iterable[tuple[str, list[Record]]]) -> list[str]:
    """A table of ways, each with its cells."""
    rows = []
    for way, own in found:
        if own:
            figures = [spread(r[key] for r in own) for key in ("personal", "p10")]
            costs = [
                spread((r[key] for r in own), d) for key, d in (("megabytes", 2), ("peak_mib", 0))
            ]
            rows.append(
                [
                    way,
                    *figures,
                    *costs,
                    spread((r["cpu_seconds"] for r in own), 0),
                    own[0].config["lr"],
                    len(own),
                ]
            )
    heads = [
        "what is trained",
        "personal %",
        "worst decile %",
        "MB in all",
        "peak MiB",
        "CPU s",
        "lr",
        "seeds",
    ]
    return table(heads, rows)


def untouched(results: Results) -> list[str]:
    """The bases before any training, on the clients' test rows."""
    found = {p: results.where(population=p, way="shared adapter", rate=0.05) for p in POPULATIONS}
    return table(
        ["base", "%"], [[p, spread(r["untrained"] for r in own)] for p, own in found.items()]
    )


STUDY = Study(
    name="adapters",
    cells=cells,
    measure=measure,
    tables={"plays": ways("plays"), "pixels": ways("pixels"), "untouched": untouched},
)
