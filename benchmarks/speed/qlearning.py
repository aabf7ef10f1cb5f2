"""Nanoseconds per environment step of federated Q-learning: the compiled kernels against vectorised
NumPy.

    python -m benchmarks.speed.qlearning [--threads 1 2] [--repeats 5]

The paper's experiment: two states, 20 actions, K = 20 agents with one fixed action each, tau = 50,
T = 2000, 100 simulations, synchronisation included. NumPy runs it twice: vectorised over agents and
simulations at once (the best it can do) and over the agents of one simulation after another (what a
plain script does). Best of the repeats.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numba
import numpy as np

from benchmarks.lab.provenance import measured
from equipoise.environments import tabular_q
from equipoise.environments.tabular_mdp import (
    TabularMDP,
    behaviour_policies,
    garnet,
    gymnasium_mdp,
    two_state,
)
from equipoise.simulation.executor_selection import available_cores

AGENTS = 20
TAU = 50
STEPS = 2000
SIMS = 100
UPDATES = AGENTS * STEPS * SIMS
RATES = {"equal": 0.2, "importance": 0.05, "targets": 0.005}
"""eta by rule of aggregation."""
NUMPY_RULES = ("equal", "importance")
"""The rules that are timed in NumPy too."""


def numpy_version(
    mdp: TabularMDP, rule: str, eta: float, steps: int, sims: int, seed: int
) -> np.ndarray:
    """K agents x sims simulations as one vector; per step a handful of gathers.

    Returns the tables [sims, S, A].
    """
    rng = np.random.default_rng(seed)
    n, A = AGENTS * sims, mdp.num_actions
    action = np.repeat(np.arange(AGENTS) % A, sims)
    q = rng.uniform(0, 1 / (1 - mdp.gamma), (AGENTS, sims, 2, A))
    rows, flat = q.reshape(n * 2, A), q.reshape(-1)
    to_one = np.ascontiguousarray(mdp.P[:, action, 1].T).reshape(
        -1
    )  # [n * 2]: chance of state 1, by walker and state
    pay = np.ascontiguousarray(mdp.R[:, action].T).reshape(-1)
    walker, entry = np.arange(n) * 2, np.arange(n * 2) * A + np.repeat(action, 2)
    at = walker + rng.integers(0, 2, n)
    for _ in range(steps // TAU):
        visits = np.zeros(n * 2 * A, np.int64)
        for u in rng.random((TAU, n)):
            following = walker + (u < to_one.take(at))
            target = pay.take(at) + mdp.gamma * rows.take(following, axis=0).max(axis=1)
            e = entry.take(at)
            flat[e] = (1 - eta) * flat.take(e) + eta * target
            visits[e] += 1
            at = following
        if rule == "equal":
            q[:] = q.mean(axis=0)
        else:
            logits = -np.log1p(-eta) * visits.reshape(q.shape)
            weights = np.exp(logits - logits.max(axis=0))
            q[:] = (weights * q).sum(axis=0) / weights.sum(axis=0)
    return np.array(q[0])


def compiled(
    problem: tabular_q.TabularProblem, rule: str, eta: float, steps: int, tau: int, sims: int
) -> np.ndarray:
    state = tabular_q.init_state(problem, sims, seed=0)
    for _ in range(steps // tau):
        tabular_q.run_local_steps(problem, state, 0, eta, tau)
        tabular_q.synchronise(state, rule, eta)
    return state.table


def nanoseconds(run: Callable[[], object], updates: int, repeats: int) -> float:
    run()  # compile, or load the cache
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return round(best / updates * 1e9, 2)


def uniform_problem(mdp: TabularMDP) -> tabular_q.TabularProblem:
    policies = behaviour_policies("uniform", mdp, AGENTS, 0.0)
    return tabular_q.TabularProblem([mdp], AGENTS, policies)


def fixed_problem(mdp: TabularMDP) -> tabular_q.TabularProblem:
    """The paper's: every agent plays one action."""
    policies = behaviour_policies("fixed", mdp, AGENTS, 0.0)
    return tabular_q.TabularProblem([mdp], AGENTS, policies)


def numpy_times(mdp: TabularMDP, repeats: int) -> dict[str, dict[str, Any]]:
    """Time NumPy by rule, and compare the errors of its tables with those of the kernels."""
    over_both: dict[str, Any] = {}
    over_agents: dict[str, Any] = {}
    error: dict[str, Any] = {}
    for rule in NUMPY_RULES:
        plain = partial(numpy_version, mdp, rule, RATES[rule], STEPS, seed=0)
        over_both[rule] = nanoseconds(partial(plain, sims=SIMS), UPDATES, repeats)
        over_agents[rule] = nanoseconds(partial(plain, sims=1), UPDATES // SIMS, repeats)
        tables = {
            "numpy": plain(sims=SIMS),
            "compiled": compiled(fixed_problem(mdp), rule, RATES[rule], STEPS, TAU, SIMS),
        }
        error[rule] = {
            name: round(float(tabular_q.normalised_errors(table, mdp).mean()), 4)
            for name, table in tables.items()
        }
    return {
        "numpy_over_agents_and_sims_ns": over_both,
        "numpy_over_agents_ns": over_agents,
        "mean_error": error,
    }


def paper_times(mdp: TabularMDP, threads: int, repeats: int) -> dict[str, float]:
    """Time the kernels on the paper's experiment, by rule of aggregation."""
    numba.set_num_threads(threads)
    problem = fixed_problem(mdp)
    return {
        rule: nanoseconds(partial(compiled, problem, rule, eta, STEPS, TAU, SIMS), UPDATES, repeats)
        for rule, eta in RATES.items()
    }


def other_times(mdp: TabularMDP, threads: int, repeats: int) -> dict[str, float]:
    """Time the kernels on other experiments, with equal weights."""
    numba.set_num_threads(threads)
    large = garnet(0, 100, 10, 10)
    cases = {
        "two-state, fixed actions, tau 1000": (fixed_problem(mdp), 1000),
        "two-state, uniform policy": (uniform_problem(mdp), TAU),
        "garnet 100 x 10, branching 10, uniform policy": (uniform_problem(large), 1000),
        "taxi, uniform policy": (uniform_problem(gymnasium_mdp("taxi")), 1000),
    }
    times = {
        name: nanoseconds(
            partial(compiled, problem, "equal", 0.1, STEPS, tau, SIMS), UPDATES, repeats
        )
        for name, (problem, tau) in cases.items()
    }
    all_pairs = tabular_q.TabularProblem([large], AGENTS)
    times["garnet 100 x 10, FedSynQ (per sample)"] = nanoseconds(
        partial(compiled, all_pairs, "equal", 0.1, 50, 5, 10),
        AGENTS * 50 * 10 * large.R.size,
        repeats,
    )
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, available_cores()])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    mdp = two_state(0)
    by_numpy = numpy_times(mdp, args.repeats)
    rows: list[dict[str, object]] = []
    for threads in dict.fromkeys(args.threads):
        for rule, ns in paper_times(mdp, threads, args.repeats).items():
            about = {"experiment": "two-state, fixed actions", "rule": rule, "threads": threads}
            row: dict[str, object] = {**about, "ns_per_step": ns}
            if rule in NUMPY_RULES:
                for name in ("numpy_over_agents_and_sims", "numpy_over_agents"):
                    row[f"times_{name}"] = round(by_numpy[f"{name}_ns"][rule] / ns, 1)
            rows.append(row)
        for name, ns in other_times(mdp, threads, args.repeats).items():
            about = {"experiment": name, "rule": "equal", "threads": threads}
            rows.append({**about, "ns_per_step": ns})
    setting = {
        "agents": AGENTS,
        "tau": TAU,
        "steps": STEPS,
        "sims": SIMS,
        "eta": RATES,
        "best_of": args.repeats,
    }
    result = {"setting": setting, "numba": numba.__version__, **by_numpy, "compiled": rows}
    measured("qlearning", result)


if __name__ == "__main__":
    main()
