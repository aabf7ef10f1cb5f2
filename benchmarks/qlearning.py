"""Nanoseconds per environment step of federated Q-learning: the compiled kernels against vectorised NumPy.

    python benchmarks/qlearning.py [--threads 1 2] [--repeats 5] [--out benchmarks/results/qlearning.json]

The paper's experiment: two states, 20 actions, K = 20 agents with one fixed action each, tau = 50, T = 2000, 100
simulations, synchronisation included. NumPy runs it twice: vectorised over agents and simulations at once (the best it
can do) and over the agents of one simulation after another (what a plain script does). Best of the repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np

from equipoise.frl import tabular
from equipoise.frl.mdp import TabularMDP, garnet, toy_text, two_state
from equipoise.frl.policies import behaviour

AGENTS, TAU, STEPS, SIMS = 20, 50, 2000, 100


def numpy_version(mdp: TabularMDP, rule: str, eta: float, steps: int, sims: int, seed: int) -> np.ndarray:
    """K agents x sims simulations as one vector; per step a handful of gathers. Returns the tables [sims, S, A]."""
    rng = np.random.default_rng(seed)
    n, A = AGENTS * sims, mdp.actions
    action = np.repeat(np.arange(AGENTS) % A, sims)
    q = rng.uniform(0, 1 / (1 - mdp.gamma), (AGENTS, sims, 2, A))
    rows, flat = q.reshape(n * 2, A), q.reshape(-1)
    to_one = np.ascontiguousarray(mdp.P[:, action, 1].T).reshape(-1)  # [n * 2]: chance of state 1, by walker and state
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
    return q[0].copy()


def compiled(problem: tabular.Problem, rule: str, eta: float, steps: int, tau: int, sims: int) -> np.ndarray:
    state = tabular.init_state(problem, sims, seed=0)
    for _ in range(steps // tau):
        tabular.local_period(problem, state, 0, eta, tau)
        tabular.synchronise(state, rule, eta)
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
    parser = argparse.ArgumentParser(description="ns per environment step: compiled kernels against NumPy")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, numba.config.NUMBA_NUM_THREADS])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "qlearning.json")
    args = parser.parse_args()
    mdp = two_state(0)
    paper = tabular.Problem([mdp], AGENTS, behaviour("fixed", mdp, AGENTS, 0.0))
    updates = AGENTS * STEPS * SIMS
    rates = {"equal": 0.2, "importance": 0.05, "targets": 0.005}
    numpy_ns, agents_ns, error = {}, {}, {}
    for rule in ("equal", "importance"):
        eta = rates[rule]
        numpy_ns[rule] = nanoseconds(
            lambda r=rule, e=eta: numpy_version(mdp, r, e, STEPS, SIMS, 0), updates, args.repeats
        )
        agents_ns[rule] = nanoseconds(
            lambda r=rule, e=eta: numpy_version(mdp, r, e, STEPS, 1, 0), updates // SIMS, args.repeats
        )
        error[rule] = {
            "numpy": round(float(tabular.errors(numpy_version(mdp, rule, eta, STEPS, SIMS, 0), mdp).mean()), 4),
            "compiled": round(float(tabular.errors(compiled(paper, rule, eta, STEPS, TAU, SIMS), mdp).mean()), 4),
        }
    rows = []
    for threads in dict.fromkeys(args.threads):
        numba.set_num_threads(threads)
        for rule, eta in rates.items():
            ns = nanoseconds(lambda r=rule, e=eta: compiled(paper, r, e, STEPS, TAU, SIMS), updates, args.repeats)
            row = {"experiment": "two-state, fixed actions", "rule": rule, "threads": threads, "ns_per_step": ns}
            if rule in numpy_ns:
                row["times_numpy_over_agents_and_sims"] = round(numpy_ns[rule] / ns, 1)
                row["times_numpy_over_agents"] = round(agents_ns[rule] / ns, 1)
            rows.append(row)
        cases = {
            "two-state, fixed actions, tau 1000": (paper, 1000),
            "two-state, uniform policy": (tabular.Problem([mdp], AGENTS, behaviour("uniform", mdp, AGENTS, 0.0)), TAU),
        }
        big = garnet(0, 100, 10, 10)
        cases["garnet 100 x 10, branching 10, uniform policy"] = (
            tabular.Problem([big], AGENTS, behaviour("uniform", big, AGENTS, 0.0)),
            1000,
        )
        taxi = toy_text("taxi")
        cases["taxi, uniform policy"] = (tabular.Problem([taxi], AGENTS, behaviour("uniform", taxi, AGENTS, 0.0)), 1000)
        for name, (problem, tau) in cases.items():
            ns = nanoseconds(lambda p=problem, t=tau: compiled(p, "equal", 0.1, STEPS, t, SIMS), updates, args.repeats)
            rows.append({"experiment": name, "rule": "equal", "threads": threads, "ns_per_step": ns})
        model = tabular.Problem([big], AGENTS)
        ns = nanoseconds(
            lambda p=model: compiled(p, "equal", 0.1, 50, 5, 10), AGENTS * 50 * 10 * big.R.size, args.repeats
        )
        rows.append(
            {
                "experiment": "garnet 100 x 10, FedSynQ (per sample)",
                "rule": "equal",
                "threads": threads,
                "ns_per_step": ns,
            }
        )
    result = {
        "command": " ".join(["python", *sys.argv]),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "numba": numba.__version__,
        },
        "setting": {"agents": AGENTS, "tau": TAU, "steps": STEPS, "sims": SIMS, "eta": rates, "best_of": args.repeats},
        "numpy_over_agents_and_sims_ns": numpy_ns,
        "numpy_over_agents_ns": agents_ns,
        "mean_error": error,
        "compiled": rows,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
