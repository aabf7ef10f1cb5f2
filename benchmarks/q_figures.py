"""Federated Q-learning: the paper's figures 3, 4, 5, slopes, and the experiments that it leaves open.

    python benchmarks/q_figures.py [--only fig3 slopes ...] [--threads 1]

Every finished cell is one JSON under benchmarks/results/q/; a second call goes on where the first one stopped, and
writes the tables (benchmarks/results/q/README.md) again. Delete a file to compute it anew.
"""

from __future__ import annotations

import argparse
from typing import Any

import numba
import numpy as np

from equipoise.frl import tabular, theory
from equipoise.frl.mdp import TabularMDP, garnet, make_mdp, perturbed, toy_text, two_state
from equipoise.frl.policies import preferred_action, regions
from q_report import write_report
from q_runs import RATES, SEED, Present, cell, curve, fastest, summary, tuned

RULES = tabular.RULES
METHOD = {"equal": "fedasynq-eq", "importance": "fedasynq-im", "targets": "fedasynq-ta"}
PAPER_RATE = {"equal": 0.2, "importance": 0.05}
AT = (50, 300, 500, 1000, 2000)


def paper_problem(agents: int = 20) -> tabular.Problem:
    mdp = two_state(0)
    return tabular.Problem([mdp], agents, preferred_action(mdp, agents, 0.0))


def garnet_problem(epsilon: float, agents: int = 20) -> tabular.Problem:
    mdp = garnet(3, 10, 5, 3)
    return tabular.Problem([mdp], agents, preferred_action(mdp, agents, epsilon))


def figure3() -> None:
    """Error against T: K = 20, tau = 50, at the paper's rates and at each method's own best one."""

    def one(rule: str, eta: float | None) -> dict[str, Any]:
        problem = paper_problem()
        rate = tuned(problem, rule, 50, 2000)["eta"] if eta is None else eta
        errors = curve(problem, rule, rate, 50, 2000)
        return {"rule": rule, "eta": rate, "tuned": eta is None, "K": 20, "tau": 50, "sims": 100, "seed": SEED,
                "steps": [50 * (r + 1) for r in range(40)], "points": [summary(row) for row in errors]}  # fmt: skip

    for rule in RULES:
        if rule in PAPER_RATE:
            cell(f"fig3-{rule}-paper", lambda r=rule: one(r, PAPER_RATE[r]))
        cell(f"fig3-{rule}-tuned", lambda r=rule: one(r, None))

    def draws(rule: str) -> dict[str, Any]:
        rows = []
        for seed in range(20):
            mdp = two_state(seed)
            errors = curve(tabular.Problem([mdp], 20, preferred_action(mdp, 20, 0.0)), rule, PAPER_RATE[rule], 50, 2000)
            rows.append([round(float(errors[t // 50 - 1].mean()), 5) for t in AT])
        return {"rule": rule, "eta": PAPER_RATE[rule], "steps": AT, "mdp_seeds": 20, "errors": rows}

    for rule in PAPER_RATE:
        cell(f"draws-{rule}", lambda r=rule: draws(r))


def figure4() -> None:
    """1 / error^2 (of the error that is not normalised) against K: T = 300, tau = 50."""

    def one(rule: str, agents: int) -> dict[str, Any]:
        problem = paper_problem(agents)
        out: dict[str, Any] = {"rule": rule, "K": agents, "T": 300, "tau": 50, "sims": 100, "seed": SEED}
        out["eta 0.05"] = summary(curve(problem, rule, 0.05, 50, 300)[-1])
        return {**out, "tuned": tuned(problem, rule, 50, 300)}

    for rule in RULES:
        for agents in (20, 40, 60, 80, 100):
            cell(f"fig4-{rule}-K{agents}", lambda r=rule, k=agents: one(r, k))


def figure5() -> None:
    """Error against tau: K = 20, T = 300."""

    def one(rule: str, tau: int) -> dict[str, Any]:
        problem = paper_problem()
        out: dict[str, Any] = {"rule": rule, "K": 20, "T": 300, "tau": tau, "sims": 100, "seed": SEED}
        out["eta 0.05"] = summary(curve(problem, rule, 0.05, tau, 300)[-1])
        return {**out, "tuned": tuned(problem, rule, tau, 300)}

    for rule in RULES:
        for tau in (1, 10, 25, 50, 75, 100):
            cell(f"fig5-{rule}-tau{tau}", lambda r=rule, t=tau: one(r, t))


def slopes() -> None:
    """Error against K and T with eta = 14 / ((1 - gamma) mu T): predicted slope -1/2."""
    mdp = garnet(0, 5, 3, 5)

    def one(method: str, agents: int, steps: int) -> dict[str, Any]:
        policies = None if method == "fedsynq" else preferred_action(mdp, agents, 1.0)
        share = 1.0 if policies is None else theory.coverage(mdp, policies).mu_avg
        problem = tabular.Problem([mdp], agents, policies)
        eta = 14.0 / ((1.0 - mdp.gamma) * share * steps)
        rule = "importance" if method == "fedasynq-im" else "equal"
        errors = curve(problem, rule, eta, 5 if policies is None else 50, steps, random_start=False)[-1]
        return {"method": method, "K": agents, "T": steps, "eta": eta, "sims": 100, "seed": SEED, **summary(errors)}

    for method, T, Ts in (
        ("fedsynq", 4000, (1000, 2000, 4000, 8000, 16000)),
        ("fedasynq-eq", 100_000, (25_000, 50_000, 100_000, 200_000, 400_000)),
        ("fedasynq-im", 100_000, (25_000, 50_000, 100_000, 200_000, 400_000)),
    ):
        for agents in (1, 2, 4, 8, 16, 32):
            cell(f"slope-{method}-K{agents}-T{T}", lambda m=method, k=agents, t=T: one(m, k, t))
        for steps in Ts:
            cell(f"slope-{method}-K4-T{steps}", lambda m=method, t=steps: one(m, 4, t))


def communication() -> None:
    """Bytes (up and down, all agents) until the mean error is 0.06: the paper's experiment, best rate per tau."""
    target, horizon = 0.06, 4000

    def one(rule: str, tau: int) -> dict[str, Any]:
        problem = paper_problem()
        found = fastest(problem, rule, tau, horizon, target, sims=50)
        rounds = found["rounds"]
        per_round = 20 * (tabular.uplink_bytes(rule, problem.mdp) + tabular.downlink_bytes(problem.mdp))
        return {"rule": rule, "tau": tau, "target": target, "horizon": horizon, "sims": 50, **found,
                "steps": rounds and rounds * tau, "bytes": rounds and rounds * per_round}  # fmt: skip

    for rule in RULES:
        for tau in (5, 10, 25, 50, 100, 200):
            cell(f"bytes-{rule}-tau{tau}", lambda r=rule, t=tau: one(r, t))


def heterogeneity() -> None:
    """Policies from equal (epsilon 1) to disjoint (0), with the theory's numbers; error and local steps to a target."""

    def one(where: str, epsilon: float) -> dict[str, Any]:
        if where == "two-state":
            mdp, steps, target = two_state(0), 2000, 0.06
        else:
            mdp, steps, target = garnet(3, 10, 5, 3), 4000, 0.05
        policies = preferred_action(mdp, 20, epsilon)
        problem = tabular.Problem([mdp], 20, policies)
        cover = theory.coverage(mdp, policies)
        out: dict[str, Any] = {"mdp": where, "epsilon": epsilon, "K": 20, "tau": 50, "T": steps, "target": target,
                               "mu_min": cover.mu_min, "mu_avg": cover.mu_avg, "c_het": cover.c_het,
                               "t_mix": cover.t_mix}  # fmt: skip
        for rule in RULES:
            found = fastest(problem, rule, 50, 3 * steps, target, sims=50)
            out[rule] = {**tuned(problem, rule, 50, steps, sims=50), "steps": found["rounds"] and 50 * found["rounds"]}
            if rule != "targets":
                scale = target / (1.0 - mdp.gamma)
                out[rule]["predicted"] = theory.predicted_samples(METHOD[rule], mdp.gamma, scale, 20, cover)
        return out

    for where in ("two-state", "garnet"):
        for epsilon in (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02):
            cell(f"het-{where}-eps{epsilon}", lambda w=where, e=epsilon: one(w, e))
    cell("het-two-state-eps0.0", lambda: one("two-state", 0.0))


def partial_coverage() -> None:
    """Regions: no agent covers the space alone, all together do."""
    places = {"garnet": lambda: garnet(2, 12, 3, 3), "frozen-lake": lambda: toy_text("frozen-lake")}

    def one(where: str, steps: int) -> dict[str, Any]:
        mdp: TabularMDP = places[where]()
        policies = regions(mdp, 6)
        cover = theory.coverage(mdp, policies)
        out: dict[str, Any] = {"mdp": where, "K": 6, "tau": 100, "T": steps, "mu_min": cover.mu_min,
                               "mu_avg": cover.mu_avg, "c_het": cover.c_het}  # fmt: skip
        problem = tabular.Problem([mdp], 6, policies)
        for rule in RULES:
            out[rule] = tuned(problem, rule, 100, steps, sims=30, random_start=False)
        alone = tabular.Problem([mdp], 1, policies[:1])
        out["one agent alone"] = tuned(alone, "equal", 100, steps, sims=30, random_start=False)
        return out

    for where in places:
        for steps in (500, 2000, 20000):
            cell(f"coverage-{where}-T{steps}", lambda w=where, t=steps: one(w, t))


def straggler_patterns() -> dict[str, Present | None]:
    missed = np.random.default_rng(7).random((2000, 20))
    k = np.arange(20)
    return {
        "nobody late": None,
        "each sync missed with p 0.5": lambda r: np.flatnonzero(missed[r] >= 0.5),
        "each sync missed with p 0.8": lambda r: np.flatnonzero(missed[r] >= 0.8),
        "half the agents sync every 10th": lambda r: np.flatnonzero((k % 2 == 0) | ((r + k) % 10 == 9)),
        "half the agents sync every 20th": lambda r: np.flatnonzero((k % 2 == 0) | ((r + k) % 20 == 19)),
    }


def stragglers() -> None:
    """Agents that skip synchronisations or come late; they walk on meanwhile with the table they hold."""
    settings: dict[str, tuple[tabular.Problem, bool]] = {
        "two-state disjoint, random Q0": (paper_problem(), True),
        "two-state disjoint, Q0 = 0": (paper_problem(), False),
        "garnet epsilon 0.3, Q0 = 0": (garnet_problem(0.3), False),
        "garnet uniform, Q0 = 0": (garnet_problem(1.0), False),
    }

    def one(setting: str, pattern: str) -> dict[str, Any]:
        problem, random_start = settings[setting]
        how: dict[str, Any] = {"sims": 50, "random_start": random_start, "present": straggler_patterns()[pattern]}
        out: dict[str, Any] = {"setting": setting, "pattern": pattern, "K": 20, "tau": 50, "T": 6000}
        return {**out, **{rule: tuned(problem, rule, 50, 6000, **how) for rule in RULES}}

    for i, setting in enumerate(settings):
        for j, pattern in enumerate(straggler_patterns()):
            cell(f"straggler-{i}-{j}", lambda s=setting, p=pattern: one(s, p))


def environments() -> None:
    """Each agent lives in its own perturbed MDP; the yardstick is Q* of the mean MDP."""

    def one(strength: float, epsilon: float, late: bool) -> dict[str, Any]:
        centre = garnet(3, 10, 5, 3)
        mdps = [perturbed(centre, 100 + k, strength) for k in range(20)]
        mean = make_mdp(np.mean([m.P for m in mdps], axis=0), np.mean([m.R for m in mdps], axis=0), centre.gamma)
        problem = tabular.Problem(mdps, 20, preferred_action(centre, 20, epsilon))
        pattern = "half the agents sync every 10th" if late else "nobody late"
        how: dict[str, Any] = {"sims": 30, "random_start": False, "yardstick": mean,
                               "present": straggler_patterns()[pattern]}  # fmt: skip
        out: dict[str, Any] = {"strength": strength, "epsilon": epsilon, "pattern": pattern, "K": 20, "T": 6000}
        return {**out, **{rule: tuned(problem, rule, 50, 6000, **how) for rule in RULES}}

    for strength in (0.0, 0.1, 0.2, 0.4, 0.8):
        for epsilon in (0.1, 0.5, 1.0):
            for late in (False, True):
                name = f"env-{strength}-eps{epsilon}{'-late' if late else ''}"
                cell(name, lambda s=strength, e=epsilon, x=late: one(s, e, x))


EXPERIMENTS = {
    "fig3": figure3,
    "fig4": figure4,
    "fig5": figure5,
    "slopes": slopes,
    "bytes": communication,
    "heterogeneity": heterogeneity,
    "coverage": partial_coverage,
    "stragglers": stragglers,
    "environments": environments,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="federated Q-learning: figures 3-5, slopes, open questions")
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    numba.set_num_threads(args.threads)
    print(f"rates tried: {RATES}")
    for name in args.only:
        EXPERIMENTS[name]()
    write_report()


if __name__ == "__main__":
    main()
