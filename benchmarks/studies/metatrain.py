"""A controller trained on many small federations before it is used: does it beat equilibrium's rule, and carry over?

The policy is as small as can be: bounded linear functions of what the two players see. A client's residuals of epochs
and rate come from the received model's loss, its change and the time; the server's exponent of the error and its memory
come from the time. An evolution strategy changes the coefficients by the final accuracies of whole runs (30 clients, 60
rounds), on a new federation in every generation, where the rule alone runs too. Server momentum is 1 - 9/rounds, which
is the rule's 0.97 at 300. Then both run on federations of the usual size (100 clients, 300 rounds).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.lab import Cell, Results, Study
from benchmarks.lab.cell import run
from benchmarks.lab.tables import table
from equipoise.contract import Client, Server, State, Task, Train, Tree, Up, option, weighted_mean
from equipoise.methods.equilibrium import LEAST_ERROR, LOSS_AT_FULL_RATE, Equilibrium
from equipoise.methods.page.shared import epochs_around, rate_around

CLIENT, SERVER = (2, 5), (2, 4)
SIZE = math.prod(CLIENT) + math.prod(SERVER)
SMALL, USUAL, UNSEEN = (30, 60), (100, 300), (101, 102)
GENERATIONS, FIRST_SEED, MEMORY = 5, 1000, 9.0
POPULATION, PARENTS, SPREAD, LEAST_SPREAD, FADE = 12, 4, 0.4, 0.12, 0.96


@dataclass(frozen=True)
class Trained(Equilibrium):
    """Equilibrium with residuals of a policy that does not change during the run."""

    coefficients: str = option("", "the policy's coefficients, with spaces; empty for none")

    def client_init(self, task: Task, params: Tree) -> State:
        zero = torch.zeros((), dtype=torch.float64)
        return {"error": zero, "last": zero, "turns": torch.zeros((), dtype=torch.int64)}

    def decide(self, c: Client) -> tuple[Train, State]:
        received = c.evaluate(c.start, "train")
        loss = received["loss"].double().clamp(min=1e-3)
        rate = (self.lr_high * (loss / LOSS_AT_FULL_RATE).sqrt()).clamp(self.lr_low, self.lr_high)
        rate = rate * self.decay_to ** self.late(c.round, c.rounds)
        change = torch.where(c.state["turns"] > 0, loss.log() - c.state["last"], torch.zeros_like(loss)).clamp(-1, 1)
        one, t = torch.ones_like(loss), c.round / c.rounds
        seen = [one, (loss.log() + 2) / 2, change, one * (2 * t - 1), one * math.cos(2 * math.pi * t)]
        action = torch.tanh(self.table[: math.prod(CLIENT)].view(CLIENT) @ torch.stack(seen))
        epochs = epochs_around(torch.full_like(c.train.epochs, self.local_epochs), action[0])
        state = {"error": 1 - received["acc"].double(), "last": loss.log(), "turns": c.state["turns"] + 1}
        return Train(epochs, rate_around(rate, action[1])), state

    def weigh(self, s: Server, ids: Tensor, up: Up) -> tuple[Tensor | Tree, State]:
        exponent = 1.0 - self.late(s.round, s.rounds) + float(self.of_server(s)[0])
        p = (up.metrics["error"] + LEAST_ERROR) ** exponent
        return p / p.sum(), s.state

    def aggregate(self, s: Server, ids: Tensor, up: Up, weights: Tensor | Tree) -> tuple[Tree, State]:
        m = max(0.0, 1 - MEMORY / s.rounds * 3.0 ** -float(self.of_server(s)[1]))
        mean, w = weighted_mean(up.params, weights), s.params
        v = {name: m * s.state["v"][name] + (mean[name] - w[name]) for name in w}
        return {name: w[name] + v[name] for name in w}, {**s.state, "v": v}

    def of_server(self, s: Server) -> Tensor:
        t = s.round / s.rounds
        seen = torch.tensor([1.0, 2 * t - 1, math.cos(2 * math.pi * t), math.cos(4 * math.pi * t)], dtype=torch.float64)
        return torch.tanh(self.table[math.prod(CLIENT) :].view(SERVER) @ seen)

    @property
    def table(self) -> Tensor:
        values = [float(word) for word in self.coefficients.split()] or [0.0] * SIZE
        return torch.tensor(values, dtype=torch.float64)


def played(coefficients: Iterable[float], seed: int, size: tuple[int, int], folder: Path) -> list[float]:
    """Global and local accuracy, in %, at the end of a run."""
    clients, rounds = size
    options = {"method": "benchmarks.studies.metatrain:Trained", "task": "synthetic", "clients": clients, "seed": seed}
    options |= {"rounds": rounds, "eval_every": rounds, "checkpoint_every": rounds, "executor": "stacked"}
    written = " ".join(repr(float(value)) for value in coefficients)
    summary = run({**options, "coefficients": written, "save_personal": False}, folder).summary
    return [100 * summary[name]["acc"] for name in ("global", "trained")]


def cells(results: Results) -> list[Cell]:
    """A generation starts from the coefficients that the one before left; the usual size comes last."""
    done = sum("generation" in record.axes for record in results)
    last: Any = [0.0] * SIZE
    if done:
        last = next(r for r in results.where(generation=done - 1))["coefficients"]
    if done < GENERATIONS:
        return [Cell({"generation": done}, {"seed": FIRST_SEED + done, "centre": last})]
    return [Cell({"size": "usual", "seed": seed}, {"seed": seed, "centre": last}) for seed in UNSEEN]


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    seed, centre = cell.options["seed"], np.array(cell.options["centre"])
    size = USUAL if "size" in cell.axes else SMALL
    result: dict[str, Any] = {
        "rule": played((), seed, size, folder),
        "trained": played(centre, seed, size, folder),
    }
    if size == SMALL:
        number = cell.axes["generation"]
        spread = max(LEAST_SPREAD, SPREAD * FADE**number)
        half = np.random.default_rng([0, number]).standard_normal((POPULATION // 2, SIZE))
        steps = np.concatenate([half, -half])
        scores = [sum(played(centre + spread * step, seed, SMALL, folder)) for step in steps]
        weights = np.log(PARENTS + 0.5) - np.log(np.arange(1, PARENTS + 1))
        best = steps[np.argsort(scores)[::-1][:PARENTS]]
        result["coefficients"] = (centre + spread * (weights / weights.sum()) @ best).tolist()
    return result


def runs(results: Results) -> list[str]:
    small = sorted((r for r in results if "generation" in r.axes), key=lambda r: int(r["generation"]))
    rows = []
    for title, records in (("30 clients, 60 rounds", small), ("100 clients, 300 rounds", results.where(size="usual"))):
        for r in records:
            figures = [" / ".join(f"{value:.2f}" for value in r[name]) for name in ("rule", "trained")]
            rows.append([r["seed"], title, *figures])
    return table(["data seed", "size", "rule, global / local %", "trained policy, global / local %"], rows)


STUDY = Study(name="metatrain", cells=cells, measure=measure, tables={"runs": runs})
