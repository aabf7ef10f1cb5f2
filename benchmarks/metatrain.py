"""A controller trained on many small federations before it is used: does it beat equilibrium's rule, and carry over?

The policy is as small as can be: bounded linear functions of what the two players see. A client's residuals of epochs
and rate come from the received model's loss, its change and the time; the server's exponent of the error and its memory
come from the time. An evolution strategy changes the coefficients by the final accuracies of whole runs (30 clients, 60
rounds), on a new federation in every generation, where the rule alone runs too. Server momentum is 1 - 9/rounds, which
is the rule's 0.97 at 300. Then both run on federations of the usual size (100 clients, 300 rounds).

    python benchmarks/metatrain.py --generations 10    # goes on where results/page/metatrain.json stopped
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.contract import Client, Server, State, Task, Train, Tree, Up, weighted_mean
from equipoise.methods.equilibrium import LEAST_ERROR, LOSS_AT_FULL_RATE, Equilibrium
from equipoise.methods.page.shared import epochs_around, rate_around
from equipoise.runtime.round import Schedule, Simulation
from equipoise.settings.config import Settings
from page_report import RESULTS

FILE = RESULTS / "metatrain.json"
CLIENT, SERVER = (2, 5), (2, 4)
SIZE = math.prod(CLIENT) + math.prod(SERVER)
SMALL, USUAL, UNSEEN = (30, 60), (100, 300), (101, 102)
POPULATION, PARENTS, SPREAD, LEAST_SPREAD, FADE = 12, 4, 0.4, 0.12, 0.96
FIRST_SEED, MEMORY = 1000, 9.0


@dataclass(frozen=True)
class Trained(Equilibrium):
    """Equilibrium with residuals of a policy that does not change during the run."""

    coefficients: tuple[float, ...] = (0.0,) * SIZE

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
        return torch.tensor(self.coefficients, dtype=torch.float64)


def played(coefficients: Any, seed: int, clients: int, rounds: int) -> list[float]:
    """Global and local accuracy, in %, at the end of a run."""
    settings = Settings.of(
        {"method": "equilibrium", "task": "synthetic", "clients": clients, "rounds": rounds, "seed": seed}
    )
    task = settings.task_spec.build(settings.task_config, settings.run.model, settings.training, seed)
    method = Trained(coefficients=tuple(float(value) for value in coefficients))
    simulation = Simulation(method, task, settings.training, Schedule(rounds, seed, 1.0, "stacked", rounds, False))
    log = [simulation.round() for _ in range(rounds)][-1]
    return [100 * log.global_.acc, 100 * log.trained.acc]


def generation(number: int, centre: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """The next centre; and both sides of rule and centre on a federation that the centre has not seen."""
    seed, spread = FIRST_SEED + number, max(LEAST_SPREAD, SPREAD * FADE**number)
    half = np.random.default_rng([0, number]).standard_normal((POPULATION // 2, SIZE))
    steps = np.concatenate([half, -half])
    scores = [sum(played(centre + spread * step, seed, *SMALL)) for step in steps]
    weights = np.log(PARENTS + 0.5) - np.log(np.arange(1, PARENTS + 1))
    best = steps[np.argsort(scores)[::-1][:PARENTS]]
    seen = {"rule": played(np.zeros(SIZE), seed, *SMALL), "trained": played(centre, seed, *SMALL)}
    return centre + spread * (weights / weights.sum()) @ best, {"seed": seed, **seen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=10, help="stop after so many in all")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(FILE.read_text()) if FILE.exists() else {"coefficients": [0.0] * SIZE, "generations": []}
    while len(kept["generations"]) < arguments.generations:
        centre, seen = generation(len(kept["generations"]), np.array(kept["coefficients"]))
        kept = {"coefficients": centre.tolist(), "generations": [*kept["generations"], seen]}
        FILE.write_text(json.dumps(kept) + "\n")
        print(seen, flush=True)
    kept["usual size"] = [
        {
            "seed": seed,
            "rule": played(np.zeros(SIZE), seed, *USUAL),
            "trained": played(kept["coefficients"], seed, *USUAL),
        }
        for seed in UNSEEN
    ]
    FILE.write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    main()
