"""Predictions of federated Q-learning theory for a given MDP and behaviour policies.

Woo, Joshi, Chi, "The Blessing of Heterogeneity in Federated Q-Learning", ICML 2023
(arXiv:2305.10697). Constants and logarithms of the theorems are left out: predictions are for
ratios and slopes, not for absolute numbers. Sample complexities are the paper's. The rules for tau,
eta and the burn-in are this project's: a summary of the paper was at hand, which states that tau
balances communication against drift, and not the theorems' conditions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from equipoise.environments.tabular_mdp import Floats, TabularMDP
from equipoise.utils.errors import UsageError

METHODS = ("fedsynq", "fedasynq-eq", "fedasynq-im")
# The lazy chain is squared up to 200 times: 2^200 steps exceed any mixing time in float64.
MAX_SQUARINGS = 200
MIN_CHANGE = 1e-16
TAU_CONSTANT = 1 / 8
"""c of our rule tau - 1 <= c min(1 - gamma, 1/K) / eta."""
ETA_CONSTANT = 14.0
"""eta (1 - gamma) mu T, at which the two terms of the error balance on the MDP of the slopes."""
MAX_ETA = 0.95
"""The largest learning rate that `best_eta` returns."""
MIN_PROBABILITY = 1e-15  # smaller stationary probabilities are rounding errors


@dataclass(frozen=True)
class Coverage:
    """How the agents' trajectories cover the state-action space."""

    mu_min: float
    """Smallest entry of any agent's stationary occupancy."""
    mu_avg: float
    """Smallest entry of the occupancy averaged over agents."""
    c_het: float
    """Largest ratio of an agent's occupancy to the average: 1 for equal policies, K for disjoint
    ones."""
    t_mix: float
    """Mixing time of the slowest agent; inf if its chain is periodic or reducible."""


def coverage(mdp: TabularMDP, policies: Floats) -> Coverage:
    """Compute the coverage of policies ``[K, S, A]``."""
    distinct = {policy.tobytes(): policy for policy in policies}
    occupancies = {key: occupancy(mdp, policy) for key, policy in distinct.items()}
    mu = np.stack([occupancies[policy.tobytes()] for policy in policies])
    average = mu.mean(axis=0)
    visited = average > 0
    return Coverage(
        mu_min=float(mu.min()),
        mu_avg=float(average.min()),
        c_het=float((mu[:, visited] / average[visited]).max()),
        t_mix=max(mixing_time(mdp, distinct[key], mu_key) for key, mu_key in occupancies.items()),
    )


def occupancy(mdp: TabularMDP, policy: Floats) -> Floats:
    """Compute the long-run share of steps in each (s, a) from the start distribution, ``[S, A]``.

    This is the stationary distribution if it is unique. The chain is made lazy (stay with
    probability 1/2) because a lazy chain has no period.
    """
    lazy = 0.5 * (np.eye(mdp.num_states) + _transition_matrix(mdp, policy))
    row = mdp.start
    for _ in range(MAX_SQUARINGS):
        new = row @ lazy
        if np.abs(new - row).max() < MIN_CHANGE:
            break
        row = new / new.sum()
        lazy = lazy @ lazy
        lazy /= lazy.sum(axis=1, keepdims=True)
    row = np.where(row < MIN_PROBABILITY, 0.0, row)
    shares: Floats = (row / row.sum())[:, None] * policy
    return shares


def mixing_time(
    mdp: TabularMDP, policy: Floats, visits: Floats | None = None, longest: int = 1 << 20
) -> float:
    """Compute the steps until (s, a) is within total variation 1/4 of stationary, at worst.

    Args:
        mdp: The MDP.
        policy: ``[S, A]``.
        visits: The policy's occupancy, if already known.
        longest: Beyond this many steps the result is inf.

    Returns:
        The number of steps.
    """
    stationary = (occupancy(mdp, policy) if visits is None else visits).sum(axis=1)

    def is_far(rows: Floats) -> bool:
        return bool(0.5 * np.abs(rows - stationary).sum(axis=1).max() > 0.25)

    # The distance never grows: double the time until it is small, then bisect.
    powers = [_transition_matrix(mdp, policy)]
    while is_far(powers[-1]):
        if 1 << len(powers) > longest:
            return float("inf")
        powers.append(powers[-1] @ powers[-1])
    chain = np.eye(mdp.num_states)  # after `steps`, the last time that is known to be too early
    steps = 0
    for bit in reversed(range(len(powers) - 1)):
        ahead = chain @ powers[bit]
        if is_far(ahead):
            chain = ahead
            steps += 1 << bit
    # From a state the result is steps + 1. A start (s, a) fixes the first action: at most one more.
    return float(steps + 1 + is_far(mdp.P.reshape(-1, mdp.num_states) @ chain))


def _transition_matrix(mdp: TabularMDP, policy: Floats) -> Floats:
    """Return the state transition matrix ``[S, S]`` under a policy."""
    matrix: Floats = np.einsum("sa,sat->st", policy, mdp.P)
    return matrix


def predicted_samples(
    method: str, gamma: float, epsilon: float, agents: int, cover: Coverage | None = None
) -> float:
    """Predict the local steps per agent until max |Q - Q*| <= epsilon, up to a constant.

    Args:
        method: One of `METHODS`.
        gamma: Discount factor.
        epsilon: Target accuracy.
        agents: Number of agents.
        cover: Coverage of the agents; needed by the asynchronous methods.

    Returns:
        The leading term of the method's theorem.

    Raises:
        UsageError: If the method is unknown or needs a coverage.
    """
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


def max_tau(eta: float, gamma: float, agents: int) -> int:
    """Return the longest synchronisation period that our rule allows at a learning rate.

    tau - 1 <= c min(1 - gamma, 1/K) / eta: within a period no agent may move so far that averaging
    no longer helps. c is `TAU_CONSTANT`. The rule is cautious (`python -m benchmarks q`, period).

    Args:
        eta: Learning rate.
        gamma: Discount factor.
        agents: Number of agents K.

    Returns:
        tau, at least 1.
    """
    return 1 + math.floor(TAU_CONSTANT * min(1.0 - gamma, 1.0 / agents) / eta)


def best_eta(gamma: float, steps: int, mu: float = 1.0) -> float:
    """Return the learning rate that balances the two terms of the error.

    The initial error decays as exp(-(1 - gamma) mu eta T) and the noise grows as sqrt(eta / K), so
    eta is proportional to 1 / ((1 - gamma) mu T). The factor `ETA_CONSTANT` was measured
    (`python -m benchmarks q`, slopes) and stands for a logarithm.

    Args:
        gamma: Discount factor.
        steps: Local steps T of an agent in the run.
        mu: Smallest entry of the average occupancy; 1 for synchronous sampling.

    Returns:
        eta, at most `MAX_ETA`.
    """
    return min(MAX_ETA, ETA_CONSTANT / ((1.0 - gamma) * mu * steps))


def burn_in(gamma: float, eta: float, cover: Coverage | None = None) -> float:
    """Return the local steps before the error is noise and no longer the first table's.

    The first table is forgotten at the rate (1 - gamma) mu eta, and a trajectory must have mixed.
    Up to a constant and a logarithm, as all predictions here.

    Args:
        gamma: Discount factor.
        eta: Learning rate.
        cover: Coverage of the agents; None for synchronous sampling.

    Returns:
        Steps; inf if the agents together miss a pair.
    """
    if cover is None:
        return 1.0 / ((1.0 - gamma) * eta)
    if cover.mu_avg == 0.0:
        return float("inf")
    return 1.0 / ((1.0 - gamma) * cover.mu_avg * eta) + cover.t_mix / cover.mu_avg


def condition_warnings(
    eta: float, tau: int, steps: int, gamma: float, agents: int, cover: Coverage | None = None
) -> tuple[str, ...]:
    """Return a sentence for each rule on tau and on the number of steps that a run violates.

    Args:
        eta: Learning rate.
        tau: Synchronisation period.
        steps: Local steps of an agent in the run.
        gamma: Discount factor.
        agents: Number of agents.
        cover: Coverage of the agents; None for synchronous sampling.

    Returns:
        The sentences, each with what to do.
    """
    warnings = []
    longest = max_tau(eta, gamma, agents)
    if tau > longest:
        warnings.append(
            f"tau is {tau}: at eta {eta:.3g} with {agents} agents averaging is sure to help up to "
            f"tau {longest}; choose a shorter period, a smaller eta, or --tau auto"
        )
    if cover is not None and cover.mu_avg == 0.0:
        warnings.append(
            "the agents together miss some state-action pairs: the error cannot become small; "
            "choose a behaviour that covers all of them (--epsilon above 0)"
        )
        return tuple(warnings)
    least = burn_in(gamma, eta, cover)
    if steps < least:
        warnings.append(
            f"the run has {steps} local steps, and at eta {eta:.3g} about {least:.0f} pass before "
            "the first table is forgotten; run longer, or choose a larger eta or --eta auto"
        )
    return tuple(warnings)


def fit_slope(x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[float, float]:
    """Fit the least-squares slope of log y against log x.

    Returns:
        The slope and its standard error.

    Raises:
        UsageError: If there are fewer than three points.
    """
    log_x = np.log(np.asarray(x, float))
    log_y = np.log(np.asarray(y, float))
    if len(log_x) < 3:
        raise UsageError("A slope with an error needs at least three points.")
    log_x = log_x - log_x.mean()
    slope = float(log_x @ log_y / (log_x @ log_x))
    residual = log_y - log_y.mean() - slope * log_x
    variance = residual @ residual / (len(log_x) - 2) / (log_x @ log_x)
    return slope, float(np.sqrt(variance))
