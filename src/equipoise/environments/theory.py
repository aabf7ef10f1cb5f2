"""What arXiv 2305.10697 predicts for a given MDP and given behaviour policies, and slopes to hold against it.

Constants and logarithms of the theorems are left out: predictions are for ratios and slopes, not for absolute numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.environments.tabular_mdp import Floats, TabularMDP
from equipoise.utils.errors import UsageError

METHODS = ("fedsynq", "fedasynq-eq", "fedasynq-im")


@dataclass(frozen=True)
class Coverage:
    """How the agents' trajectories cover the state-action space."""

    mu_min: float
    """smallest entry of any agent's stationary occupancy"""
    mu_avg: float
    """smallest entry of the occupancy averaged over agents"""
    c_het: float
    """largest ratio of an agent's occupancy to the average one: 1 for equal policies, K for disjoint ones"""
    t_mix: float
    """slowest agent's mixing time; inf if its chain is periodic or falls apart"""


def coverage(mdp: TabularMDP, policies: Floats) -> Coverage:
    chains = {policy.tobytes(): policy for policy in policies}
    known = {key: occupancy(mdp, policy) for key, policy in chains.items()}
    mu = np.stack([known[policy.tobytes()] for policy in policies])
    average = mu.mean(axis=0)
    seen = average > 0
    slowest = max(mixing_time(mdp, policy, known[key]) for key, policy in chains.items())
    return Coverage(
        float(mu.min()), float(average.min()), float((mu[:, seen] / average[seen]).max()), slowest
    )


def occupancy(mdp: TabularMDP, policy: Floats) -> Floats:
    """Long-run share of steps spent in each (s, a) from the start distribution (the stationary law if unique)."""
    lazy = 0.5 * (np.eye(mdp.states) + _chain(mdp, policy))
    row = mdp.start
    for _ in range(
        200
    ):  # the lazy chain has no period; squaring makes 2^200 steps, far beyond any float64 mixing time
        new = row @ lazy
        if np.abs(new - row).max() < 1e-16:
            break
        row = new / new.sum()
        lazy = lazy @ lazy
        lazy /= lazy.sum(axis=1, keepdims=True)
    row = np.where(row < 1e-15, 0.0, row)
    visits: Floats = (row / row.sum())[:, None] * policy
    return visits


def mixing_time(
    mdp: TabularMDP, policy: Floats, visits: Floats | None = None, longest: int = 1 << 20
) -> float:
    """Steps until the law of (s, a) is within total variation 1/4 of the stationary one, from the worst start.

    `visits` is the policy's occupancy, if it is known already; beyond `longest` steps the answer is inf.
    """
    stationary = (occupancy(mdp, policy) if visits is None else visits).sum(axis=1)
    step = _chain(mdp, policy)

    def far(rows: Floats) -> bool:
        return bool(0.5 * np.abs(rows - stationary).sum(axis=1).max() > 0.25)

    powers = [step]
    while far(powers[-1]):  # the distance never grows: double the time, then halve the interval
        if 1 << len(powers) > longest:
            return float("inf")
        powers.append(powers[-1] @ powers[-1])
    late, taken = np.eye(mdp.states), 0  # the chain after the last time that is too early
    for bit in reversed(range(len(powers) - 1)):
        if far(ahead := late @ powers[bit]):
            late, taken = ahead, taken + (1 << bit)
    # From states the answer is taken + 1; a start (s, a) has its first step fixed, which costs one step more at most.
    return float(taken + 1 + far(mdp.P.reshape(-1, mdp.states) @ late))


def _chain(mdp: TabularMDP, policy: Floats) -> Floats:
    chain: Floats = np.einsum("sa,sat->st", policy, mdp.P)
    return chain


def predicted_samples(
    method: str, gamma: float, epsilon: float, agents: int, cover: Coverage | None = None
) -> float:
    """Local steps per agent until max |Q - Q*| <= epsilon, by the leading term of the method's theorem."""
    horizon = 1.0 / (agents * (1.0 - gamma) ** 5 * epsilon**2)
    if method == "fedsynq":
        return horizon
    if method not in METHODS:
        raise UsageError(f"The theory knows {', '.join(METHODS)}, not '{method}'.")
    if cover is None:
        raise UsageError(
            f"{method} depends on how the agents cover the state-action space; give their coverage."
        )
    if cover.mu_avg == 0.0:
        return float("inf")
    return horizon / cover.mu_avg * (cover.c_het if method == "fedasynq-eq" else 1.0)


def fit_slope(x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[float, float]:
    """Least-squares slope of log y against log x, and its standard error."""
    u, v = np.log(np.asarray(x, float)), np.log(np.asarray(y, float))
    if len(u) < 3:
        raise UsageError("A slope with an error needs at least three points.")
    u = u - u.mean()
    slope = float(u @ v / (u @ u))
    rest = v - v.mean() - slope * u
    return slope, float(np.sqrt(rest @ rest / (len(u) - 2) / (u @ u)))
