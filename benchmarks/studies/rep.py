"""Shared representations: theory beside measurement, for agents whose true values are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.studies import rep_page
from equipoise.environments import linear_mdp
from equipoise.environments.tabular_mdp import (
    TabularMDP,
    epsilon_greedy_policy,
    evenly_spaced,
    make_mdp,
    mdp_under_policy,
    planted_mdps,
    windy_cliff_mdps,
)
from equipoise.environments.theory import occupancy
from equipoise.tasks.rl_linear import WindyCliffConfig

SEEDS, FRESH_SEEDS = tuple(range(10)), tuple(range(10, 20))
STATES, RANK, BRANCHING, GAMMA, LOCAL_STEPS = 20, 2, 3, 0.8, 10
SCHEDULE = {"alpha0": 0.05, "beta0": 0.3, "t0": rep_page.T0}
CONTROL = {"relative": {"alpha0": 0.05, "beta0": 1.0, "t0": 10_000.0}}  # the methods' defaults
CONTROL["published"] = {**CONTROL["relative"], "beta0": 0.1}  # with 0.3 seeds diverged
CLIFF = WindyCliffConfig()
UNITS = (0.01, 1.0, 100.0)
AGENTS = (2, 4, 8, 16, 32, 64)
TARGETS = (0.2, 0.1, 0.06, 0.04)
BUDGET = 800_000  # rounds times agents
# Rounds that even the largest federation takes in the main table, to compare all sizes at one T.
LEAST = 40_000
SHOWN = (1000, 2000, 5000, 10_000, 20_000, 40_000, 100_000, 200_000, 400_000)
SHARING = ("nothing", "everything", "representation")
SAMPLES = 220_000  # steps of an agent in the experiment on communication frequency
TROUBLE_ROUNDS = 8000


def rates(rounds: int, alpha0: float, beta0: float, t0: float) -> np.ndarray:
    """The methods' own schedule: alpha_t falls as t^(-2/3), beta_t as 1/t."""
    fade = 1 + np.arange(rounds) / t0
    return np.stack([alpha0 / fade ** (2 / 3), beta0 / fade], axis=1)


def chains(seed: int, agents: int) -> list[TabularMDP]:
    """The theory task: policy evaluation, values planted in a subspace of dimension 2."""
    return planted_mdps(seed, evenly_spaced(agents), STATES, 1, BRANCHING, RANK, GAMMA)


def measured(
    mdps: Sequence[TabularMDP],
    seed: int,
    steps: np.ndarray,
    marks: np.ndarray,
    *,
    rank: int = RANK,
    epsilon: float = 1.0,
    sharing: str = "representation",
    relative: bool = False,
    local_steps: int = LOCAL_STEPS,
) -> dict[str, np.ndarray]:
    """Exact subspace distance and mean value errors, plain and by visits (with actions also
    regret), at `marks`.
    """
    if sharing == "nothing":
        how: dict[str, Any] = {"rank": rank, "epsilon": epsilon, "relative": relative}
        alone = [measured([mdp], seed, steps, marks, **how) for mdp in mdps]
        return {name: np.mean([one[name] for one in alone], axis=0) for name in alone[0]}
    problem = linear_mdp.LinearProblem(mdps, rank, epsilon)
    phis, thetas = linear_mdp.run_federated(
        problem, seed, steps, local_steps, marks, sharing == "everything", relative
    )
    values = torch.einsum("msd,mnd->mns", phis, thetas)
    out = {"distance": linear_mdp.subspace_distance(phis, problem.best_subspace)}
    out["error"] = linear_mdp.value_error(values, problem.true_values).mean(1)
    visits = np.stack(
        [occupancy(mdp, epsilon_greedy_policy(mdp, epsilon)).reshape(-1) for mdp in mdps]
    )
    out["visited"] = linear_mdp.value_error(
        values, problem.true_values, torch.from_numpy(visits)
    ).mean(1)
    if mdps[0].num_actions > 1:
        stack = {
            name: np.stack([getattr(mdp, name) for mdp in mdps])
            for name in ("P", "R", "discount", "start")
        }
        tensors = {name: torch.from_numpy(array) for name, array in stack.items()}
        tensors["best"] = torch.from_numpy(np.stack([mdp.q_star.max(axis=1) for mdp in mdps]))
        shaped = values.reshape(len(marks), *tensors["R"].shape)
        out["regret"] = torch.stack(
            [linear_mdp.greedy_regret(tensors, one).mean() for one in shaped]
        )
    return {name: value.numpy() for name, value in out.items()}


def rounded(rows: Sequence[np.ndarray]) -> list[list[float | None]]:
    """For JSON: four digits; what diverged is null."""
    return [[float(f"{v:.4g}") if np.isfinite(v) else None for v in row] for row in rows]


def one_size(
    agents: int, seeds: Sequence[int], least: int = 1000, **changed: float
) -> dict[str, Any]:
    """One number of agents: rounds to each target and thinned curves, seed by seed."""
    rounds = max(least, BUDGET // agents)
    marks = np.unique(
        np.geomspace(10, rounds, int(np.log(rounds / 10) / np.log(1.02)) + 2).astype(np.int64)
    )
    runs = [
        measured(chains(seed, agents), seed, rates(rounds, **{**SCHEDULE, **changed}), marks)
        for seed in seeds
    ]
    near = [int(np.abs(marks - t).argmin()) for t in SHOWN if t <= rounds]

    def first_hit(distance: np.ndarray, target: float) -> int | None:
        hits = np.flatnonzero(distance <= target)
        return int(marks[hits[0]]) if len(hits) else None

    return {
        "rounds": rounds,
        "seeds": list(seeds),
        "hits": {
            str(target): [first_hit(run["distance"], target) for run in runs] for target in TARGETS
        },
        "at": [int(marks[i]) for i in near],
        **{name: rounded([run[name][near] for run in runs]) for name in ("distance", "error")},
        "curve_at": marks[::8].tolist(),
        "curve": rounded([run["distance"][::8] for run in runs]),
    }


def first(agents: int, sharing: str) -> dict[str, Any]:
    """One agent and two agents (the summary's first two experiments), and sixteen, against the
    baselines.
    """
    marks, steps = np.array([100, 1000, 10_000, 40_000]), rates(40_000, **SCHEDULE)
    runs = [measured(chains(seed, agents), seed, steps, marks, sharing=sharing) for seed in SEEDS]
    kept = {name: rounded([run[name] for run in runs]) for name in ("distance", "error")}
    return {"seeds": list(SEEDS), "at": marks.tolist(), **kept}


def worlds(kind: str, seed: int) -> tuple[list[TabularMDP], int]:
    if kind == "planted-q":
        return planted_mdps(seed, evenly_spaced(16), STATES, 4, BRANCHING, 3, 0.9), 3
    windy = windy_cliff_mdps(evenly_spaced(16), CLIFF.wind, CLIFF.gamma, CLIFF.goal)
    if kind == "windy-cliff-q":
        return windy, CLIFF.rank
    policy = epsilon_greedy_policy(
        windy_cliff_mdps(np.zeros(1), CLIFF.wind, CLIFF.gamma, CLIFF.goal)[0], CLIFF.epsilon
    )
    return [mdp_under_policy(mdp, policy) for mdp in windy], CLIFF.rank


def control(kind: str, sharing: str, step: str) -> dict[str, Any]:
    """Q-learning on planted MDPs, and both learners on the windy cliff: not theory any more."""
    marks, runs = np.array([1000, 10_000, 40_000]), []
    steps = rates(40_000, **(SCHEDULE if kind == "windy-cliff-v" else CONTROL[step]))
    for seed in SEEDS[:5]:
        mdps, rank = worlds(kind, seed)
        how: dict[str, Any] = {
            "rank": rank,
            "epsilon": 0.5,
            "sharing": sharing,
            "relative": step == "relative",
        }
        runs.append(measured(mdps, seed, steps, marks, **how))
    kept = {name: rounded([run[name] for run in runs]) for name in runs[0]}
    return {"agents": 16, "seeds": len(runs), "at": marks.tolist(), **kept}


def grid_world(beta0: float, t0: float) -> dict[str, Any]:
    """PFedTD-Rep on the windy cliff, policy evaluation, at larger and later rates than the default.

    Beside its errors: the singular values of the true values, and the mean errors that the best
    subspaces of rank 1 and of the task's rank leave.
    """
    marks, runs = np.array([10_000, 40_000, 100_000]), []
    steps = rates(100_000, 0.05, beta0, t0)
    for seed in SEEDS[:3]:
        mdps, rank = worlds("windy-cliff-v", seed)
        runs.append(measured(mdps, seed, steps, marks, rank=rank, epsilon=0.5, relative=True))
    truth = linear_mdp.LinearProblem(mdps, rank, 0.5).true_values
    _, singular, basis = torch.linalg.svd(truth, full_matrices=False)
    floors = [
        float(linear_mdp.value_error(truth @ basis[:d].mT @ basis[:d], truth).mean())
        for d in (1, rank)
    ]
    known = {"rank": rank, "singular": [round(float(v), 3) for v in singular[:3]]}
    known |= {"floor_rank1": round(floors[0], 4), "floor": round(floors[1], 4)}
    kept = {name: rounded([run[name] for run in runs]) for name in ("error", "distance")}
    return {"agents": 16, "at": marks.tolist(), **known, **kept}


def timescale(variant: str) -> dict[str, Any]:
    """PFedTD-Rep with one timescale, and with the rates of Phi too large or too small."""
    marks = np.array([1000, 10_000, 40_000])
    alpha0, beta0, t0, decay = rep_page.TIMESCALES[variant]
    fade = 1 + np.arange(40_000) / t0
    steps = np.stack([alpha0 / fade ** (2 / 3), beta0 / fade**decay], axis=1)
    if t0 == np.inf:
        steps = np.broadcast_to([alpha0, beta0], steps.shape).copy()
    runs = [measured(chains(seed, 16), seed, steps, marks) for seed in SEEDS[:5]]
    kept = {name: rounded([run[name] for run in runs]) for name in ("distance", "error")}
    return {"agents": 16, "at": marks.tolist(), **kept}


def frequency(local_steps: int) -> dict[str, Any]:
    """PFedTD-Rep by the steps on the weights between two averages: equal rounds, equal samples."""
    rounds = SAMPLES // (local_steps + 1)
    marks = np.array([4000, rounds])
    steps = rates(rounds, **SCHEDULE)
    runs = [
        measured(chains(seed, 16), seed, steps, marks, local_steps=local_steps)
        for seed in SEEDS[:5]
    ]
    kept = {name: rounded([run[name] for run in runs]) for name in ("distance", "error")}
    return {"agents": 16, "samples": SAMPLES, "at": marks.tolist(), **kept}


def troubled(absent: float, delay: int) -> dict[str, Any]:
    """PFedTD-Rep with agents that miss rounds, or whose changes arrive rounds later."""
    runs = [troubled_run(seed, absent, delay) for seed in SEEDS[:3]]
    kept = {name: [run[name] for run in runs] for name in ("distance", "error")}
    return {"agents": 16, "rounds": TROUBLE_ROUNDS, **kept}


def troubled_run(seed: int, absent: float, delay: int) -> dict[str, float]:
    """One run: an absent agent stands still, and a late change of Phi is added when it arrives.

    The weights of an agent are fitted to the Phi that it receives, as the method does it.
    """
    problem = linear_mdp.LinearProblem(chains(seed, 16), RANK, 1.0)
    draws = np.random.default_rng(seed).random((TROUBLE_ROUNDS, problem.agents))
    phi = linear_mdp.initial_features(problem, seed)
    values = torch.zeros(problem.agents, problem.num_rows, dtype=torch.float64)
    position = torch.from_numpy(problem.initial_states(seed).copy())
    sq_td_error = torch.zeros(problem.agents, dtype=torch.float64)
    taken = np.zeros(problem.agents, np.int64)
    under_way: list[torch.Tensor] = [torch.zeros_like(phi)] * delay
    for t, (alpha, beta) in enumerate(rates(TROUBLE_ROUNDS, **SCHEDULE)):
        ids = np.flatnonzero(draws[t] >= absent)
        if not len(ids):
            continue
        rows = torch.from_numpy(ids)
        own_phi = phi.repeat(len(ids), 1, 1)
        theta = linear_mdp.fit_theta(own_phi, values[rows])
        here = position[rows]
        means = sq_td_error[rows]
        for count, rate, moves in (
            (LOCAL_STEPS, alpha, (False, True, False)),
            (1, beta, (True, False, False)),
        ):
            linear_mdp.advance(
                problem,
                ids,
                own_phi,
                theta,
                here,
                means,
                problem.rng_keys(seed, ids, taken[ids]),
                taken[ids],
                torch.full((len(ids),), count),
                torch.full((len(ids),), float(rate), dtype=torch.float64),
                moves,
            )
            taken[ids] += count
        position[rows] = here
        sq_td_error[rows] = means
        values[rows] = torch.einsum("ksd,kd->ks", own_phi, theta)
        under_way.append((own_phi - phi).mean(0))
        phi = linear_mdp.orthonormal(phi + under_way.pop(0))
    error = linear_mdp.value_error(values, problem.true_values).mean()
    distance = linear_mdp.subspace_distance(phi, problem.best_subspace)
    return {"error": round(float(error), 5), "distance": round(float(distance), 5)}


def lyapunov(agents: int) -> dict[str, Any]:
    """The Lyapunov function of the two timescales along a run of the theory task.

    M_t = distance(Phi)^2 + beta_t / alpha_t mean_i |theta_i - y_i(Phi)|^2 / |y_i(Phi)|^2, where
    y_i(Phi) are the best weights of agent i for this representation.
    """
    marks = np.unique(np.geomspace(10, 20_000, 40).astype(np.int64))
    steps = rates(20_000, **SCHEDULE)
    ratio = torch.from_numpy(steps[marks - 1, 1] / steps[marks - 1, 0])
    curves = []
    for seed in SEEDS[:3]:
        problem = linear_mdp.LinearProblem(chains(seed, agents), RANK, 1.0)
        phis, thetas = linear_mdp.run_federated(problem, seed, steps, LOCAL_STEPS, marks)
        best = torch.linalg.lstsq(phis, problem.true_values.mT.expand(len(marks), -1, -1)).solution
        gap = (thetas - best.mT).square().sum(-1) / best.mT.square().sum(-1)
        distance = linear_mdp.subspace_distance(phis, problem.best_subspace)
        curves.append((distance.square() + ratio * gap.mean(1)).numpy())
    return {"at": marks.tolist(), "lyapunov": rounded(curves)}


def unit(unit: float, step: str) -> dict[str, Any]:
    """The theory task of 16 agents with rewards in another unit, at one schedule."""
    marks, runs = np.array([1000, 10_000]), []
    for seed in SEEDS[:5]:
        mdps = [make_mdp(mdp.P, unit * mdp.R, mdp.gamma) for mdp in chains(seed, 16)]
        runs.append(
            measured(mdps, seed, rates(10_000, **SCHEDULE), marks, relative=step == "relative")
        )
    return {
        "at": marks.tolist(),
        **{name: rounded([run[name] for run in runs]) for name in ("distance", "error")},
    }


def cells(results: Results) -> list[Cell]:
    def of(experiment: str, **axes: Any) -> list[Cell]:
        return grid(experiment=[experiment], **axes)

    found = [
        *of("speedup", agents=AGENTS),
        *of("confirm", agents=AGENTS),
        *of("first", agents=(1,), sharing=("nothing",)),
    ]
    found += of("first", agents=(2, 16), sharing=SHARING)
    kinds = ("planted-q", "windy-cliff-v", "windy-cliff-q")
    found += of("control", kind=kinds, sharing=SHARING, step=("relative",))
    found += of("control", kind=kinds, sharing=("representation",), step=("published",))
    found += of("unit", unit=UNITS, step=CONTROL)
    found += of("grid", beta0=(10.0, 5.0), t0=(10_000.0, 20_000.0))
    found += of("lyapunov", agents=(2, 8, 32))
    found += of("timescale", variant=rep_page.TIMESCALES)
    found += of("frequency", local_steps=rep_page.FREQUENCIES)
    found += of("troubled", absent=rep_page.ABSENT, delay=(0,))
    found += of("troubled", absent=(0.0,), delay=rep_page.DELAYS)
    return [
        *found,
        *of("regime", t0=(1000.0, 10_000.0), agents=AGENTS),
        *of("regime", alpha0=(0.2,), agents=AGENTS),
    ]


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    axes = dict(cell.axes)
    match axes.pop("experiment"):
        case "speedup":
            return one_size(axes["agents"], SEEDS, LEAST)
        case "confirm":  # on seeds that had no part in choosing the schedule
            return one_size(axes["agents"], FRESH_SEEDS)
        case "regime":  # where the noise of Phi does not rule, there is no linear speed-up
            return one_size(seeds=SEEDS[:5], **axes)
        case "first":
            return first(**axes)
        case "unit":
            return unit(**axes)
        case "grid":
            return grid_world(**axes)
        case "lyapunov":
            return lyapunov(**axes)
        case "timescale":
            return timescale(**axes)
        case "frequency":
            return frequency(**axes)
        case "troubled":
            return troubled(**axes)
    return control(**axes)


STUDY = Study(
    name="rep", cells=cells, measure=measure, tables=rep_page.TABLES, figures=rep_page.FIGURES
)
