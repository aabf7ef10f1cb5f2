"""A policy for autopilot, trained across federations by an evolution strategy.

In every generation new small federations are drawn. Directions in the space of weights are tried both ways on all of
them (augmented random search, Mania et al., 2018), and the weights move towards what ended with the better accuracies:

    w <- w + STEP / (K sd) sum_k (score(w + SPREAD d_k) - score(w - SPREAD d_k)) d_k

where sd is the deviation of all scores. The file is written after each generation; the same command goes on from it.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.core.errors import UsageError
from equipoise.core.options import Options, option
from equipoise.methods import policies
from equipoise.methods.steering import RULE
from equipoise.runs.running import build_task
from equipoise.runtime.round import Schedule, Simulation
from equipoise.settings.config import Settings

STEP, SPREAD = 0.1, 0.2
Weights = NDArray[np.float64]
Told = Callable[[int, float, float], None]
"""Called after each generation: its number, the mean score of the weights and that of the rule, in points."""


@dataclass(frozen=True)
class Search(Options):
    """How long and how widely a policy is trained."""

    generations: int = option(40, "generations, each on new federations", low=1)
    directions: int = option(6, "directions of change that a generation tries, each both ways", low=1)
    federations: int = option(4, "federations that each of them is tried on", low=1)
    seed: int = option(0, "what federations and directions are drawn by", low=0)


def federation(seed: int, generation: int, number: int) -> dict[str, Any]:
    """Options of a small federation: how many clients, how large, how different, and for how long they train."""
    draw = np.random.default_rng([seed, generation, number])
    return {
        **{"task": "synthetic", "seed": int(draw.integers(2**31)), "model": str(draw.choice(["linear", "mlp"]))},
        **{"clients": int(draw.integers(4, 9)), "rounds": int(draw.integers(5, 16))},
        **{"features": int(draw.integers(5, 31)), "classes": int(draw.integers(2, 11))},
        **{"samples": int(40 * 2 ** draw.random()), "size_sigma": float(draw.choice([0.0, 1.0]))},
        **{"alpha": float(draw.choice([0.0, 0.5, 1.0])), "beta": float(draw.choice([0.0, 0.5, 1.0]))},
        **{"batch_size": int(draw.choice([8, 16, 32])), "epochs": 1, "executor": "stacked"},
    }


def played(options: dict[str, Any], weights: Weights) -> float:
    """Mean of global and personal test accuracy, in points, at the end of a federation's rounds."""
    settings = Settings.of({**options, "method": "autopilot"})
    run = settings.run
    schedule = Schedule(run.rounds, run.seed, 1.0, run.executor, run.rounds, False)
    simulation = Simulation(settings.method, build_task(settings), settings.training, schedule)
    simulation.server_state["row"] = torch.from_numpy(weights)
    for _ in range(run.rounds):
        record = simulation.round()
    return float(50 * (record.global_.acc + record.personal.acc))


def train(search: Search, out: Path, minutes: float, processes: int, told: Told | None = None) -> int:
    """Train a policy, from where the file ``out`` stands if it is there.

    Arguments:
        search: how long and how widely.
        out: the file of the policy.
        minutes: no generation begins after so long.
        processes: how many federations are played at the same time; any number gives the same policy.
        told: called after every generation.

    Returns:
        The number of generations that the policy has now.
    """
    if processes < 1:
        raise UsageError(f"processes is {processes}: must be at least 1")
    weights, done = _begun(search, out)
    end = time.monotonic() + 60 * minutes
    with _players(processes) as play:
        while done < search.generations and time.monotonic() < end:
            weights, mean, rule = _generation(search, weights, done, play)
            done += 1
            about = {name: str(value) for name, value in asdict(search).items()}
            policies.write(out, torch.from_numpy(weights), about | {"done": str(done)})
            if told:
                told(done, mean, rule)
    return done


Play = Callable[[list[tuple[dict[str, Any], Weights]]], list[float]]


@contextmanager
def _players(processes: int) -> Iterator[Play]:
    """What plays federations, here or in as many processes."""
    if processes == 1:
        yield lambda games: [played(*game) for game in games]
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
        yield lambda games: list(pool.map(played, *zip(*games, strict=True)))


def _generation(search: Search, weights: Weights, number: int, play: Play) -> tuple[Weights, float, float]:
    """The next weights, the mean score of all that were tried, and that of the rule."""
    draw = np.random.default_rng([search.seed, number])
    directions = draw.standard_normal((search.directions, len(weights)))
    tried = np.concatenate([weights + SPREAD * directions, weights - SPREAD * directions, [weights, np.array(RULE)]])
    where = [federation(search.seed, number, k) for k in range(search.federations)]
    scores = np.array(play([(options, each) for each in tried for options in where])).reshape(len(tried), -1).mean(1)
    ahead = scores[: search.directions] - scores[search.directions : -2]
    deviation = float(scores[:-2].std())
    if math.isfinite(deviation) and deviation > 0:
        weights = weights + STEP / (search.directions * deviation) * ahead @ directions
    return weights, float(scores[-2]), float(scores[-1])


def _begun(search: Search, out: Path) -> tuple[Weights, int]:
    """Weights and generations of a training that was stopped, or the rule and none."""
    if not out.exists():
        return np.array(RULE), 0
    weights, about = policies.read(out)
    for name in ("directions", "federations", "seed"):
        if about.get(name) != str(getattr(search, name)):
            raise UsageError(
                f"'{out}' was trained with {name} {about.get(name)}: give the same, or name another file with --out"
            )
    return weights.numpy(), int(about["done"])
