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

AGENTS, TAU, STEPS, SIMS = 20, 50, 2000, 100


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, available_cores()])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    mdp, big, taxi = two_state(0), garnet(0, 100, 10, 10), gymnasium_mdp("taxi")
    paper = tabular_q.TabularProblem([mdp], AGENTS, behaviour_policies("fixed", mdp, AGENTS, 0.0))
    updates, rates = AGENTS * STEPS * SIMS, {"equal": 0.2, "importance": 0.05, "targets": 0.005}

    def uniform(place: TabularMDP) -> tabular_q.TabularProblem:
        return tabular_q.TabularProblem(
            [place], AGENTS, behaviour_policies("uniform", place, AGENTS, 0.0)
        )

    numpy_ns, agents_ns, error = {}, {}, {}
    for rule in ("equal", "importance"):
        plain = partial(numpy_version, mdp, rule, rates[rule], STEPS, seed=0)
        numpy_ns[rule] = nanoseconds(partial(plain, sims=SIMS), updates, args.repeats)
        agents_ns[rule] = nanoseconds(partial(plain, sims=1), updates // SIMS, args.repeats)
        tables = {
            "numpy": plain(sims=SIMS),
            "compiled": compiled(paper, rule, rates[rule], STEPS, TAU, SIMS),
        }
        error[rule] = {
            name: round(float(tabular_q.normalised_errors(table, mdp).mean()), 4)
            for name, table in tables.items()
        }
    cases = {
        "two-state, fixed actions, tau 1000": (paper, 1000),
        "two-state, uniform policy": (uniform(mdp), TAU),
        "garnet 100 x 10, branching 10, uniform policy": (uniform(big), 1000),
        "taxi, uniform policy": (uniform(taxi), 1000),
    }
    samples, rows = AGENTS * 50 * 10 * big.R.size, []
    for threads in dict.fromkeys(args.threads):
        numba.set_num_threads(threads)
        for rule, eta in rates.items():
            ns = nanoseconds(
                partial(compiled, paper, rule, eta, STEPS, TAU, SIMS), updates, args.repeats
            )
            row = {
                "experiment": "two-state, fixed actions",
                "rule": rule,
                "threads": threads,
                "ns_per_step": ns,
            }
            if rule in numpy_ns:
                row["times_numpy_over_agents_and_sims"] = round(numpy_ns[rule] / ns, 1)
                row["times_numpy_over_agents"] = round(agents_ns[rule] / ns, 1)
            rows.append(row)
        timed = {
            name: nanoseconds(
                partial(compiled, problem, "equal", 0.1, STEPS, tau, SIMS), updates, args.repeats
            )
            for name, (problem, tau) in cases.items()
        }
        synchronous = partial(
            compiled, tabular_q.TabularProblem([big], AGENTS), "equal", 0.1, 50, 5, 10
        )
        timed["garnet 100 x 10, FedSynQ (per sample)"] = nanoseconds(
            synchronous, samples, args.repeats
        )
        about = {"rule": "equal", "threads": threads}
        rows += [{"experiment": name, **about, "ns_per_step": ns} for name, ns in timed.items()]
    result = {
        "setting": {
            "agents": AGENTS,
            "tau": TAU,
            "steps": STEPS,
            "sims": SIMS,
            "eta": rates,
            "best_of": args.repeats,
        },
        "numba": numba.__version__,
        "numpy_over_agents_and_sims_ns": numpy_ns,
        "numpy_over_agents_ns": agents_ns,
        "mean_error": error,
        "compiled": rows,
    }
    measured("qlearning", result)


if __name__ == "__main__":
    main()
