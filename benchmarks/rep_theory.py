"""Shared representations: theory beside measurement, for agents whose true values are known.

    python benchmarks/rep_theory.py [--only speedup first control ...]

Every finished cell is one JSON under benchmarks/results/rep/; a second call goes on where the first one stopped, and
writes the tables (benchmarks/results/rep/README.md) again. Delete a file to compute it anew. One thread; the whole set
takes a few minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.frl import linear
from equipoise.frl.families import planted, soft_greedy, spread, under_policy, windy_cliff
from equipoise.frl.mdp import TabularMDP
from q_runs import cell
from rep_report import write_report

FOLDER = Path(__file__).parent / "results" / "rep"
SEEDS, FRESH_SEEDS = tuple(range(10)), tuple(range(10, 20))
STATES, RANK, BRANCHING, GAMMA, LOCAL_STEPS = 20, 2, 3, 0.8, 10
ALPHA0, BETA0, T0 = 0.05, 0.3, 3000.0
AGENTS = (2, 4, 8, 16, 32, 64)
TARGETS = (0.2, 0.1, 0.06, 0.04)
BUDGET = 800_000  # rounds times agents
LEAST = 40_000  # rounds that even the largest federation takes, to compare all sizes at one T


def rates(rounds: int, alpha0: float = ALPHA0, beta0: float = BETA0, t0: float = T0) -> np.ndarray:
    """The methods' own schedule: alpha_t falls as t^(-2/3), beta_t as 1/t."""
    fade = 1 + np.arange(rounds) / t0
    return np.stack([alpha0 / fade ** (2 / 3), beta0 / fade], axis=1)


def geometric(rounds: int, ratio: float) -> np.ndarray:
    return np.unique(np.geomspace(10, rounds, int(np.log(rounds / 10) / np.log(ratio)) + 2).astype(np.int64))


def chains(seed: int, agents: int) -> list[TabularMDP]:
    """The theory task: policy evaluation, values planted in a subspace of dimension 2."""
    return planted(seed, spread(agents), STATES, 1, BRANCHING, RANK, GAMMA)


def measured(
    mdps: Sequence[TabularMDP], seed: int, steps: np.ndarray, marks: np.ndarray, *, rank: int = RANK,
    epsilon: float = 1.0, sharing: str = "representation",
) -> dict[str, np.ndarray]:  # fmt: skip
    """Exact subspace distance and mean value error (with actions also regret) at `marks`."""
    if sharing == "nothing":
        alone = [measured([mdp], seed, steps, marks, rank=rank, epsilon=epsilon) for mdp in mdps]
        return {name: np.mean([one[name] for one in alone], axis=0) for name in alone[0]}
    problem = linear.LinearProblem(mdps, rank, epsilon)
    phis, thetas = linear.federate(problem, seed, steps, LOCAL_STEPS, marks, sharing == "everything")
    values = torch.einsum("msd,mnd->mns", phis, thetas)
    out = {"distance": linear.subspace_distance(phis, problem.span)}
    out["error"] = linear.value_error(values, problem.values).mean(1)
    if mdps[0].actions > 1:
        stack = {name: np.stack([getattr(mdp, name) for mdp in mdps]) for name in ("P", "R", "discount", "start")}
        tensors = {name: torch.from_numpy(array) for name, array in stack.items()}
        tensors["best"] = torch.from_numpy(np.stack([mdp.q_star.max(axis=1) for mdp in mdps]))
        shaped = values.reshape(len(marks), *tensors["R"].shape)
        out["regret"] = torch.stack([linear.greedy_regret(tensors, one).mean() for one in shaped])
    return {name: value.numpy() for name, value in out.items()}


def first_hit(marks: np.ndarray, distance: np.ndarray, target: float) -> int | None:
    hits = np.flatnonzero(distance <= target)
    return int(marks[hits[0]]) if len(hits) else None


def rounded(rows: Sequence[np.ndarray]) -> list[list[float | None]]:
    """For JSON: four digits; what diverged is null."""
    return [[float(f"{v:.4g}") if np.isfinite(v) else None for v in row] for row in rows]


def one_size(agents: int, seeds: Sequence[int], least: int, **schedule: float) -> dict[str, Any]:
    """One number of agents: rounds to each target and thinned curves, seed by seed."""
    rounds = max(least, BUDGET // agents)
    marks = geometric(rounds, 1.02)
    runs = [measured(chains(seed, agents), seed, rates(rounds, **schedule), marks) for seed in seeds]
    common = [t for t in (1000, 2000, 5000, 10_000, 20_000, 40_000, 100_000, 200_000, 400_000) if t <= rounds]
    near = [int(np.abs(marks - t).argmin()) for t in common]
    return {
        **{"agents": agents, "rounds": rounds, "seeds": list(seeds)},
        "hits": {str(target): [first_hit(marks, run["distance"], target) for run in runs] for target in TARGETS},
        "at": [int(marks[i]) for i in near],
        **{name: rounded([run[name][near] for run in runs]) for name in ("distance", "error")},
        "curve_at": marks[::8].tolist(),
        "curve": rounded([run["distance"][::8] for run in runs]),
    }


def speedup() -> None:
    """The summary's third experiment: more and more agents."""
    for agents in AGENTS:
        cell(f"speedup-{agents:02d}", lambda n=agents: one_size(n, SEEDS, LEAST), FOLDER)


def confirm() -> None:
    """The same on seeds that had no part in choosing the schedule."""
    for agents in AGENTS:
        cell(f"confirm-{agents:02d}", lambda n=agents: one_size(n, FRESH_SEEDS, 1000), FOLDER)


def regimes() -> None:
    """The same under other schedules: where the noise of Phi does not rule, there is no linear speed-up."""
    for t0 in (1000.0, 10_000.0):
        for agents in AGENTS:
            name = f"regime-{t0:g}-{agents:02d}"
            cell(name, lambda n=agents, t=t0: {"t0": t, **one_size(n, SEEDS[:5], 1000, t0=t)}, FOLDER)
    for alpha0 in (0.2,):
        for agents in AGENTS:
            name = f"alpha-{alpha0:g}-{agents:02d}"
            cell(name, lambda n=agents, a=alpha0: {"alpha0": a, **one_size(n, SEEDS[:5], 1000, alpha0=a)}, FOLDER)


def first_experiments() -> None:
    """One agent and two agents (the summary's first two), and sixteen, against the baselines."""
    marks = np.array([100, 1000, 10_000, 40_000])

    def one(agents: int, sharing: str) -> dict[str, Any]:
        runs = [measured(chains(s, agents), s, rates(40_000), marks, sharing=sharing) for s in SEEDS]
        scores = {name: rounded([run[name] for run in runs]) for name in ("distance", "error")}
        return {"agents": agents, "sharing": sharing, "seeds": list(SEEDS), "at": marks.tolist(), **scores}

    for agents in (1, 2, 16):
        for sharing in ("nothing", "everything", "representation") if agents > 1 else ("nothing",):
            cell(f"first-{agents:02d}-{sharing}", lambda n=agents, s=sharing: one(n, s), FOLDER)


def control() -> None:
    """Q-learning on planted MDPs, and both learners on the windy cliff: not theory any more."""
    marks = np.array([1000, 10_000, 40_000])

    def worlds(kind: str, seed: int) -> tuple[list[TabularMDP], int]:
        if kind == "planted-q":
            return planted(seed, spread(16), STATES, 4, BRANCHING, 3, 0.9), 3
        windy = windy_cliff(spread(16), 0.5, 0.9)
        if kind == "windy-cliff-q":
            return windy, 2
        policy = soft_greedy(windy_cliff(np.zeros(1), 0.5, 0.9)[0], 0.5)
        return [under_policy(mdp, policy) for mdp in windy], 2

    def one(kind: str, sharing: str) -> dict[str, Any]:
        steps = rates(40_000) if kind == "windy-cliff-v" else rates(40_000, 0.05, 0.1, 10_000.0)  # the defaults
        runs = []
        for seed in SEEDS[:5]:
            mdps, rank = worlds(kind, seed)
            runs.append(measured(mdps, seed, steps, marks, rank=rank, epsilon=0.5, sharing=sharing))
        scores = {name: rounded([run[name] for run in runs]) for name in runs[0]}
        return {"kind": kind, "sharing": sharing, "agents": 16, "seeds": 5, "at": marks.tolist(), **scores}

    for kind in ("planted-q", "windy-cliff-v", "windy-cliff-q"):
        for sharing in ("nothing", "everything", "representation"):
            cell(f"control-{kind}-{sharing}", lambda k=kind, s=sharing: one(k, s), FOLDER)


EXPERIMENTS = {
    "speedup": speedup,
    "confirm": confirm,
    "first": first_experiments,
    "control": control,
    "regimes": regimes,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="shared representations: slopes, speed-up, first experiments")
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.only:
        EXPERIMENTS[name]()
    write_report()


if __name__ == "__main__":
    main()
