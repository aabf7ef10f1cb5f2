"""Federated Q-learning: the paper's figures 3, 4, 5, slopes, and the experiments that it leaves
open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lab import Cell, Results, Study, grid
from benchmarks.lab.cell import run
from benchmarks.studies import q_page
from equipoise.environments import tabular_q, theory
from equipoise.environments.tabular_mdp import (
    TabularMDP,
    garnet,
    gymnasium_mdp,
    make_mdp,
    perturb,
    preferred_action_policies,
    region_policies,
    two_state,
)

RATES = [float(f"{eta:.2g}") for eta in np.geomspace(0.0003, 0.95, 27)]
SEED, TUNING_SEED = 1, 2  # rates are chosen on other random numbers than those they are reported on
METHOD = {"equal": "fedasynq-eq", "importance": "fedasynq-im"}
PAPER_RATE = {"equal": 0.2, "importance": 0.05}
FULL = {"sims": 100, "seed": SEED}
ON_TIME, LATE = "nobody late", "half the agents sync every 10th"
Present = Callable[[int], np.ndarray | None]
Kept = dict[str, Any]
MISSED = np.random.default_rng(7).random((2000, 20))
K20 = np.arange(20)
PATTERNS: dict[str, Present | None] = {
    ON_TIME: None,
    "each sync missed with p 0.5": lambda r: np.flatnonzero(MISSED[r] >= 0.5),
    "each sync missed with p 0.8": lambda r: np.flatnonzero(MISSED[r] >= 0.8),
    LATE: lambda r: np.flatnonzero((K20 % 2 == 0) | ((r + K20) % 10 == 9)),
    "half the agents sync every 20th": lambda r: np.flatnonzero(
        (K20 % 2 == 0) | ((r + K20) % 20 == 19)
    ),
}


def curve(
    problem: tabular_q.TabularProblem,
    rule: str,
    eta: float,
    tau: int,
    steps: int,
    *,
    sims: int = 100,
    seed: int = SEED,
    random_start: bool = True,
    present: Present | None = None,
    yardstick: TabularMDP | None = None,
    first_tables: int | None = None,
) -> np.ndarray:
    """Normalised errors [rounds, sims] of the server's table after each synchronisation.

    ``first_tables``: a seed from which each agent's first table is drawn, the same in all
    simulations.
    """
    state = tabular_q.init_state(problem, sims, seed, random_start)
    if first_tables is not None:
        one = tabular_q.init_state(problem, 1, first_tables)
        state.q[:], state.base[:], state.table[:] = one.q, one.base, one.table
    out = []
    for r in range(steps // tau):
        tabular_q.run_local_steps(problem, state, seed, eta, tau)
        tabular_q.synchronise(state, rule, eta, None if present is None else present(r))
        out.append(tabular_q.normalised_errors(state.table, yardstick or problem.mdp))
    return np.array(out)


def summary(errors: np.ndarray) -> Kept:
    """Mean, standard error and 10-90 % band over simulations."""
    low, high = np.quantile(errors, [0.1, 0.9])
    error = float(errors.std(ddof=1) / np.sqrt(len(errors)))
    found = {
        "error": float(errors.mean()),
        "standard_error": error,
        "p10": float(low),
        "p90": float(high),
    }
    return {name: round(value, 5) for name, value in found.items()}


def tuned(problem: tabular_q.TabularProblem, rule: str, tau: int, steps: int, **how: Any) -> Kept:
    """The rate with the least final error on the tuning seed, and what it reaches on the reporting
    seed.
    """
    trials = {
        eta: float(curve(problem, rule, eta, tau, steps, seed=TUNING_SEED, **how)[-1].mean())
        for eta in RATES
    }
    eta = min(trials, key=trials.__getitem__)
    return {"eta": eta, **summary(curve(problem, rule, eta, tau, steps, **how)[-1])}


def rounds_to(errors: np.ndarray, target: float) -> int | None:
    """First round after which the mean error over simulations is at most the target."""
    hits = np.flatnonzero(errors.mean(axis=1) <= target)
    return int(hits[0]) + 1 if len(hits) else None


def fastest(
    problem: tabular_q.TabularProblem,
    rule: str,
    tau: int,
    steps: int,
    target: float,
    sims: int,
    rates: Sequence[float] = RATES,
) -> Kept:
    """The rate that reaches the target first on the tuning seed, and its rounds on the reporting
    seed.
    """
    trials = {
        e: rounds_to(curve(problem, rule, e, tau, steps, sims=sims, seed=TUNING_SEED), target)
        for e in rates
    }
    found = {eta: rounds for eta, rounds in trials.items() if rounds is not None}
    if not found:
        return {"eta": None, "rounds": None}
    eta = min(found, key=found.__getitem__)
    return {
        "eta": eta,
        "rounds": rounds_to(curve(problem, rule, eta, tau, steps, sims=sims), target),
    }


def walkers(mdp: TabularMDP, epsilon: float = 0.0, agents: int = 20) -> tabular_q.TabularProblem:
    return tabular_q.TabularProblem([mdp], agents, preferred_action_policies(mdp, agents, epsilon))


def fig3(rule: str, rate: str) -> Kept:
    """Error against T: K = 20, tau = 50, at the paper's rates and at each method's own best one."""
    problem = walkers(two_state(0))
    eta = PAPER_RATE[rule] if rate == "paper" else tuned(problem, rule, 50, 2000)["eta"]
    errors = curve(problem, rule, eta, 50, 2000)
    steps = [50 * (r + 1) for r in range(40)]
    return {
        "eta": eta,
        "K": 20,
        "tau": 50,
        **FULL,
        "steps": steps,
        "points": [summary(row) for row in errors],
    }


def draws(rule: str) -> Kept:
    """The same for twenty draws of the MDP."""
    rows = []
    for seed in range(20):
        errors = curve(walkers(two_state(seed)), rule, PAPER_RATE[rule], 50, 2000)
        rows.append([round(float(errors[t // 50 - 1].mean()), 5) for t in q_page.AT])
    return {"eta": PAPER_RATE[rule], "steps": q_page.AT, "mdp_seeds": 20, "errors": rows}


def mean_table(rule: str) -> Kept:
    """Figure 3's error, the error of the mean of all simulations' tables, and the mean of Q - Q*.

    The second one holds what is common to all simulations, the third one overestimation.
    """
    problem, eta = walkers(two_state(0)), PAPER_RATE[rule]
    state = tabular_q.init_state(problem, 100, SEED, True)
    errors, common, signed = [], [], []
    for r in range(2000 // 50):
        tabular_q.run_local_steps(problem, state, SEED, eta, 50)
        tabular_q.synchronise(state, rule, eta, None)
        if 50 * (r + 1) in q_page.AT:
            middle = state.table.mean(axis=0, keepdims=True)
            errors.append(float(tabular_q.normalised_errors(state.table, problem.mdp).mean()))
            common.append(float(tabular_q.normalised_errors(middle, problem.mdp).mean()))
            too_high = (middle - problem.mdp.q_star).mean()
            signed.append(float((1 - problem.mdp.gamma) * too_high))
    kept = {"errors": errors, "common": common, "signed": signed}
    rounded = {name: [round(value, 5) for value in values] for name, values in kept.items()}
    return {"eta": eta, **FULL, "steps": q_page.AT, **rounded}


def tables(rule: str) -> Kept:
    """Figure 3 with one first table of each agent for all simulations: means and spreads over them,
    for 20 draws.
    """
    problem, means, spreads = walkers(two_state(0)), [], []
    for draw in range(20):
        errors = curve(problem, rule, PAPER_RATE[rule], 50, 2000, first_tables=1000 + draw)
        rows = [errors[t // 50 - 1] for t in q_page.AT]
        means.append([round(float(row.mean()), 5) for row in rows])
        spreads.append([round(float(row.std(ddof=1)), 5) for row in rows])
    return {"eta": PAPER_RATE[rule], "steps": q_page.AT, "means": means, "spreads": spreads}


def synq(tau: int) -> Kept:
    """FedSynQ's error against tau: T = 1000, K = 20, at one rate and at the best one."""
    problem = tabular_q.TabularProblem([garnet(0, 5, 3, 5)], 20)
    fixed = summary(curve(problem, "equal", 0.05, tau, 1000, random_start=False)[-1])
    return {
        **FULL,
        "eta 0.05": fixed,
        "tuned": tuned(problem, "equal", tau, 1000, random_start=False),
    }


def period(eta: float, tau: int) -> Kept:
    """FedSynQ's error against tau where there is a trade-off: random first tables, T = 250.

    Beside the error: whether tau is within the theory's condition at this eta.
    """
    mdp = garnet(0, 5, 3, 5)
    problem = tabular_q.TabularProblem([mdp], 20)
    errors = curve(problem, "equal", eta, tau, 250, sims=50)
    longest = theory.max_tau(eta, mdp.gamma, 20)
    found = summary(errors[-1])
    return {"sims": 50, "T": 250, "seed": SEED, "longest": longest, "rounds": 250 // tau, **found}


def exponent(along: str, value: float) -> Kept:
    """The error after T steps at the best rate, along one parameter of the theorems.

    The samples that an error needs are proportional to its square, so the slope of log error^2 is
    the exponent of the sample complexity.
    """
    gamma = value if along == "gamma" else 0.8
    states = int(value) if along == "size" else 6
    mdp = garnet(5, states, 2, 3, gamma)
    if along == "mixing":
        stay = np.eye(states)[:, None, :]
        mdp = make_mdp(value * stay + (1.0 - value) * mdp.P, mdp.R, gamma)
    if along == "copies":
        mdp = two_copies(mdp, value)
    how: Kept = {"sims": 20, "random_start": False}
    if along == "gamma":
        found = tuned(tabular_q.TabularProblem([mdp], 4), "equal", 10, 500, **how)
        return {"K": 4, "tau": 10, "T": 500, **found, "largest": found["error"] / (1.0 - gamma)}
    policies = preferred_action_policies(mdp, 4, 1.0)
    cover = theory.coverage(mdp, policies)
    problem = tabular_q.TabularProblem([mdp], 4, policies)
    found = tuned(problem, "importance", 100, 5000, **how)
    found |= {"largest": found["error"] / (1.0 - gamma), "mu_avg": cover.mu_avg}
    return {"K": 4, "tau": 100, "T": 5000, **found, "t_mix": cover.t_mix}


def two_copies(mdp: TabularMDP, chance: float) -> TabularMDP:
    """Return two copies of an MDP, between which every step changes with this chance.

    A small chance means a long mixing time. Values, coverage and the spread of the values of the
    next state are the same for every chance.
    """
    within, across = (1.0 - chance) * mdp.P, chance * mdp.P
    P = np.concatenate(
        [np.concatenate([within, across], axis=2), np.concatenate([across, within], axis=2)]
    )
    return make_mdp(P, np.concatenate([mdp.R, mdp.R]), mdp.gamma)


def fades(gamma: float, K: int) -> Kept:
    """FedSynQ's error against K at the best rate, for several horizons 1 / (1 - gamma): T = 500,
    tau = 5.
    """
    problem = tabular_q.TabularProblem([garnet(0, 5, 3, 5, gamma)], K)
    return tuned(problem, "equal", 5, 500, sims=30, random_start=False)


def at_300(rule: str, K: int = 20, tau: int = 50) -> Kept:
    """Figures 4 and 5: the error at T = 300, at one rate and at the best one."""
    problem = walkers(two_state(0), agents=K)
    fixed = summary(curve(problem, rule, 0.05, tau, 300)[-1])
    return {"T": 300, **FULL, "eta 0.05": fixed, "tuned": tuned(problem, rule, tau, 300)}


def slope(method: str, K: int, T: int) -> Kept:
    """Error against K and T with eta = 14 / ((1 - gamma) mu T): predicted slope -1/2."""
    mdp = garnet(0, 5, 3, 5)
    policies = None if method == "fedsynq" else preferred_action_policies(mdp, K, 1.0)
    share = 1.0 if policies is None else theory.coverage(mdp, policies).mu_avg
    eta = 14.0 / ((1.0 - mdp.gamma) * share * T)
    rule = "importance" if method == "fedasynq-im" else "equal"
    problem = tabular_q.TabularProblem([mdp], K, policies)
    errors = curve(problem, rule, eta, 5 if policies is None else 50, T, random_start=False)[-1]
    return {"eta": eta, **FULL, **summary(errors)}


def refined_options(experiment: str, K: int, samples: int) -> dict[str, Any]:
    """Fed-DVR-Q on the MDP of the slopes: four epochs of 25 rounds, a batch a quarter of the first
    reference's.
    """
    place = {
        "task": "garnet",
        "states": 5,
        "actions": 3,
        "branching": 5,
        "seed": 0,
        "sims": 100,
        "agents": K,
    }
    how = {
        "rounds": 100,
        "iterations": 25,
        "reference_batch": samples,
        "batch": samples // 4,
        "eval_every": 100,
    }
    return {**place, **how, "method": "feddvrq"}


def refined(cell: Cell, folder: Path) -> Kept:
    """Its error, and that of FedSynQ at its best rate from as many samples."""
    summary, config = run(cell.options, folder).summary, cell.options
    seen = sum(config["reference_batch"] * 4**epoch + 24 * config["batch"] for epoch in range(4))
    problem = tabular_q.TabularProblem([garnet(0, 5, 3, 5)], config["agents"])
    plain = tuned(problem, "equal", 8, seen, random_start=False, sims=30)
    own = {
        "error": round(summary["error"], 6),
        "standard_error": round(summary["error_std"] / 10, 6),
    }
    return {"seen": seen, "rounds": 100, **own, "fedsynq": {**plain, "rounds": seen // 8}}


def communication(rule: str, tau: int) -> Kept:
    """Bytes (up and down, all agents) until the mean error is 0.06: the paper's experiment, best
    rate per tau.
    """
    problem, target, horizon = walkers(two_state(0)), 0.06, 4000
    found = fastest(problem, rule, tau, horizon, target, 50)
    rounds = found["rounds"]
    per_round = 20 * (
        tabular_q.uplink_bytes(rule, problem.mdp) + tabular_q.downlink_bytes(problem.mdp)
    )
    spent = {"steps": rounds and rounds * tau, "bytes": rounds and rounds * per_round}
    return {"target": target, "horizon": horizon, "sims": 50, **found, **spent}


def overhead(scale: str, epsilon: float) -> Kept:
    """Bytes (up and down, all agents) to an error of 0.05: the best of three periods for each rule.

    Scales of states, actions and agents; policies from equal (epsilon 1) to nearly disjoint.
    """
    states, actions, agents = q_page.SCALES[scale]
    mdp = garnet(3, states, actions, 3)
    problem, target, horizon = walkers(mdp, epsilon, agents), 0.05, q_page.OVERHEAD_STEPS
    cover = theory.coverage(mdp, preferred_action_policies(mdp, agents, epsilon))
    out: Kept = {"K": agents, "target": target, "horizon": horizon, "sims": 10}
    out |= {"c_het": round(cover.c_het, 3), "mu_avg": cover.mu_avg}
    for rule in METHOD:
        both_ways = tabular_q.uplink_bytes(rule, mdp) + tabular_q.downlink_bytes(mdp)
        found = []
        for tau in q_page.OVERHEAD_TAUS:
            one = fastest(problem, rule, tau, horizon, target, 10, RATES[8::2])
            if one["rounds"]:
                found.append({**one, "tau": tau, "bytes": one["rounds"] * agents * both_ways})
        out[rule] = min(found, key=lambda one: one["bytes"]) if found else None
    return out


def heterogeneity(mdp: str, epsilon: float) -> Kept:
    """Policies from equal (epsilon 1) to disjoint (0), with the theory's numbers; error and local
    steps to a target.
    """
    place, T, target = (
        (two_state(0), 2000, 0.06) if mdp == "two-state" else (garnet(3, 10, 5, 3), 4000, 0.05)
    )
    problem = walkers(place, epsilon)
    cover = theory.coverage(place, preferred_action_policies(place, 20, epsilon))
    known = {name: getattr(cover, name) for name in ("mu_min", "mu_avg", "c_het", "t_mix")}
    out: Kept = {"K": 20, "tau": 50, "T": T, "target": target, **known}
    for rule in tabular_q.AVERAGING_RULES:
        rounds = fastest(problem, rule, 50, 3 * T, target, 50)["rounds"]
        out[rule] = {**tuned(problem, rule, 50, T, sims=50), "steps": rounds and 50 * rounds}
        if rule in METHOD:
            scale = target / (1.0 - place.gamma)
            out[rule]["predicted"] = theory.predicted_samples(
                METHOD[rule], place.gamma, scale, 20, cover
            )
    return out


def partial_coverage(mdp: str, T: int) -> Kept:
    """Regions: no agent covers the space alone, all together do."""
    place = garnet(2, 12, 3, 3) if mdp == "garnet" else gymnasium_mdp("frozen-lake")
    policies = region_policies(place, 6)
    cover, how = theory.coverage(place, policies), {"sims": 30, "random_start": False}
    known = {name: getattr(cover, name) for name in ("mu_min", "mu_avg", "c_het")}
    problem, alone = (
        tabular_q.TabularProblem([place], 6, policies),
        tabular_q.TabularProblem([place], 1, policies[:1]),
    )
    rules = {rule: tuned(problem, rule, 100, T, **how) for rule in tabular_q.AVERAGING_RULES}
    return {
        "K": 6,
        "tau": 100,
        **known,
        **rules,
        "one agent alone": tuned(alone, "equal", 100, T, **how),
    }


SETTINGS: dict[str, tuple[Callable[[], tabular_q.TabularProblem], bool]] = {
    "two-state disjoint, random Q0": (lambda: walkers(two_state(0)), True),
    "two-state disjoint, Q0 = 0": (lambda: walkers(two_state(0)), False),
    "garnet epsilon 0.3, Q0 = 0": (lambda: walkers(garnet(3, 10, 5, 3), 0.3), False),
    "garnet uniform, Q0 = 0": (lambda: walkers(garnet(3, 10, 5, 3), 1.0), False),
}


def straggler(setting: str, pattern: str) -> Kept:
    """Agents that skip synchronisations or come late; they walk on meanwhile with the table they
    hold.
    """
    make, random_start = SETTINGS[setting]
    how: Kept = {"sims": 50, "random_start": random_start, "present": PATTERNS[pattern]}
    rules = {rule: tuned(make(), rule, 50, 6000, **how) for rule in tabular_q.AVERAGING_RULES}
    return {"K": 20, "tau": 50, "T": 6000, **rules}


def environment(strength: float, epsilon: float, pattern: str) -> Kept:
    """Each agent lives in its own perturbed MDP; the yardstick is Q* of the mean MDP."""
    centre = garnet(3, 10, 5, 3)
    mdps = [perturb(centre, 100 + k, strength) for k in range(20)]
    mean = make_mdp(
        np.mean([m.P for m in mdps], axis=0), np.mean([m.R for m in mdps], axis=0), centre.gamma
    )
    problem = tabular_q.TabularProblem(mdps, 20, preferred_action_policies(centre, 20, epsilon))
    how: Kept = {"sims": 30, "random_start": False, "yardstick": mean, "present": PATTERNS[pattern]}
    return {
        "K": 20,
        "T": 6000,
        **{rule: tuned(problem, rule, 50, 6000, **how) for rule in tabular_q.AVERAGING_RULES},
    }


EXPERIMENTS: dict[str, Callable[..., Kept]] = {
    "fig3": fig3, "draws": draws, "fig4": at_300, "fig5": at_300, "slope": slope,
    "bytes": communication, "het": heterogeneity, "coverage": partial_coverage,
    "straggler": straggler, "env": environment, "tables": tables, "synq": synq, "fades": fades,
    "period": period, "exponent": exponent, "overhead": overhead,
    "mean-table": mean_table,
}  # fmt: skip


def cells(results: Results) -> list[Cell]:
    def of(experiment: str, **axes: Any) -> list[Cell]:
        return grid(experiment=[experiment], **axes)

    rules, long = tabular_q.AVERAGING_RULES, (25_000, 50_000, 100_000, 200_000, 400_000)
    found = [
        *of("fig3", rule=rules, rate=("tuned",)),
        *of("fig3", rule=PAPER_RATE, rate=("paper",)),
    ]
    found += [*of("draws", rule=PAPER_RATE), *of("fig4", rule=rules, K=q_page.AGENTS)]
    found += of("fig5", rule=rules, tau=(1, 10, 25, 50, 75, 100))
    for method, T, Ts in (
        ("fedsynq", 4000, (1000, 2000, 4000, 8000, 16000)),
        ("fedasynq-eq", 100_000, long),
        ("fedasynq-im", 100_000, long),
    ):
        found += of("slope", method=[method], K=(1, 2, 4, 8, 16, 32), T=(T,))
        found += of("slope", method=[method], K=(4,), T=[t for t in Ts if t != T])
    found += of("tables", rule=PAPER_RATE)
    found += of("mean-table", rule=PAPER_RATE)
    found += of("synq", tau=q_page.SYNQ_TAUS)
    found += of("period", eta=q_page.PERIOD_RATES, tau=q_page.SYNQ_TAUS)
    for along, values in q_page.EXPONENTS.items():
        found += of("exponent", along=(along,), value=values)
    found += of("fades", gamma=(0.5, 0.9, 0.97), K=q_page.FADING)
    found += grid(refined_options, experiment=["refined"], K=q_page.REFINED, samples=(32,))
    found += grid(refined_options, experiment=["refined"], K=(4,), samples=(8, 128))
    found += of("bytes", rule=rules, tau=q_page.TAUS)
    found += of("overhead", scale=q_page.SCALES, epsilon=(1.0, 0.3, 0.1))
    found += of(
        "het", mdp=("two-state", "garnet"), epsilon=(1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
    )
    found += [*of("het", mdp=["two-state"], epsilon=[0.0])]
    found += of("coverage", mdp=("garnet", "frozen-lake"), T=(500, 2000, 20000))
    found += of("straggler", setting=SETTINGS, pattern=PATTERNS)
    return found + of(
        "env", strength=(0.0, 0.1, 0.2, 0.4, 0.8), epsilon=(0.1, 0.5, 1.0), pattern=(ON_TIME, LATE)
    )


def measure(cell: Cell, folder: Path) -> Kept:
    axes = dict(cell.axes)
    if cell.options:
        return refined(cell, folder)
    return EXPERIMENTS[axes.pop("experiment")](**axes)


STUDY = Study(name="q", cells=cells, measure=measure, tables=q_page.TABLES, figures=q_page.FIGURES)
