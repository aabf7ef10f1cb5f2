"""Compiled steps of TD and Q-learning with features, Q(s, a) = phi(s, a) . theta; agents in parallel.

A walker is one agent: phi[walker, S * A, d], theta[walker, d], its own MDP env[walker] (one action: policy evaluation).
Random numbers are those of `qkernel`: a hash of (seed, agent, stream, step), whatever the threads and periods.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import numpy as np
from numba import njit, prange

from equipoise.environments.tabular_kernels import _CHUNKS, _GOLDEN, _LOW32, _R32, _mix

MIN_EMA_WEIGHT = 0.01  # of the mean of squared TD errors: the weight of the newest, once there are more than 1 / MEMORY


@njit(cache=True, parallel=True)
def walk_features(  # type: ignore[no-untyped-def]
    phi,
    theta,
    position,
    surprise,
    env,
    key,
    choice_key,
    threshold,
    outcome,
    reward,
    discount,
    taken,
    steps,
    rate,
    epsilon,
    moves,
):
    """steps[w] transitions of every walker at rate[w]; all of (phi, theta, position, surprise) change in place.

    theta += rate delta phi(s, a) and/or phi(s, a) += rate scale delta theta, both with the values before the step;
    `moves` says whether (phi, theta) learn, and whether steps on phi are relative: see `relative_scale`. `surprise` is
    a walker's mean of delta^2, and `taken` its steps before these.
    """
    walkers, _, d = phi.shape
    move_phi, move_theta, relative = moves
    for chunk in prange(_CHUNKS):
        for w in range(chunk * walkers // _CHUNKS, (chunk + 1) * walkers // _CHUNKS):
            features, weights, e, s = phi[w], theta[w], env[w], position[w]
            for t in range(1, steps[w] + 1):
                tables = (threshold[e], outcome[e], reward[e], discount[e])
                row, delta, s = transition(
                    features, weights, s, key[w], choice_key[w], t, epsilon, tables
                )
                surprise[w] += (delta * delta - surprise[w]) * max(
                    MIN_EMA_WEIGHT, 1.0 / (taken[w] + t)
                )
                scale = relative_scale(weights, surprise[w]) if relative else 1.0
                for j in range(d):
                    f, v = features[row, j], weights[j]
                    if move_theta:
                        weights[j] = v + rate[w] * delta * f
                    if move_phi:
                        features[row, j] = f + rate[w] * scale * delta * v
            position[w] = s


@njit(inline="always")
def transition(features, weights, s, key, choice_key, t, epsilon, tables):  # type: ignore[no-untyped-def]
    """Step number t from state s, epsilon-greedy: the row visited, its TD error and the next state.

    delta = r + discount(s') max_a' phi(s', a') theta - phi(s, a) theta.
    """
    threshold, outcome, reward, discount = tables
    A, cells = reward.shape[1], np.uint64(threshold.shape[2])
    a = np.int64(0)
    if A > 1:
        x = _mix(choice_key + np.uint64(t) * _GOLDEN)
        if (x & _LOW32) < epsilon * 2.0**32:
            a = np.int64(((x >> _R32) * np.uint64(A)) >> _R32)
        else:
            a = _best(features, weights, s, A)[0]
    x = _mix(key + np.uint64(t) * _GOLDEN)
    cell = ((x >> _R32) * cells) >> _R32
    s2 = np.int64(outcome[s, a, cell, np.uint64((x & _LOW32) >= threshold[s, a, cell])])
    row = s * A + a
    delta = (
        reward[s, a]
        + discount[s2] * _best(features, weights, s2, A)[1]
        - _dot(features, row, weights)
    )
    return row, delta, s2


@njit(inline="always")
def relative_scale(weights, surprise):  # type: ignore[no-untyped-def]
    """1 / (|theta|^2 + mean delta^2): delta theta times this is the same for rewards of any unit, and never large."""
    total = surprise
    for j in range(len(weights)):
        total += weights[j] * weights[j]
    return 1.0 / total if total > 0.0 else 0.0


@njit(inline="always")
def _dot(features, row, weights):  # type: ignore[no-untyped-def]
    total = 0.0
    for j in range(len(weights)):
        total += features[row, j] * weights[j]
    return total


@njit(inline="always")
def _best(features, weights, s, A):  # type: ignore[no-untyped-def]
    """The first action of largest value, and that value."""
    action, value = 0, _dot(features, s * A, weights)
    for a in range(1, A):
        q = _dot(features, s * A + a, weights)
        if q > value:
            action, value = a, q
    return action, value


@njit(cache=True)
def federate(  # type: ignore[no-untyped-def]
    phi,
    theta,
    position,
    key,
    choice_key,
    threshold,
    outcome,
    reward,
    discount,
    epsilon,
    rates,
    local_steps,
    share,
    relative,
    marks,
):
    """Whole rounds of `pfedtd-rep` and its kin, for experiments of many rounds: the contract's rounds, compiled.

    phi [S * A, d] is the server's (normalised), theta [N, d] the agents'; rates [T, 2] are alpha_t and beta_t; `share`
    says whether theta is averaged too, `relative` whether steps on phi are. Gives phi and theta as trained after each
    round of `marks` (ascending, from 1).
    """
    entries, d = phi.shape
    N, T = len(theta), len(rates)
    phis, thetas = np.empty((len(marks), entries, d)), np.empty((len(marks), N, d))
    change, visited, total, turn = (
        np.empty((N, d)),
        np.empty(N, np.int64),
        np.empty((entries, d)),
        np.empty((d, d)),
    )
    fresh, surprise = np.empty(d), np.zeros(N)
    taken, written = 0, 0
    for t in range(T):
        alpha, beta = rates[t]
        total[:] = 0.0
        for i in range(N):
            weights, s = theta[i], position[i]
            for k in range(1, local_steps + 2):
                tables = (threshold[i], outcome[i], reward[i], discount[i])
                row, delta, s = transition(
                    phi, weights, s, key[i], choice_key[i], taken + k, epsilon, tables
                )
                surprise[i] += (delta * delta - surprise[i]) * max(
                    MIN_EMA_WEIGHT, 1.0 / (taken + k)
                )
                scale = relative_scale(weights, surprise[i]) if relative else 1.0
                for j in range(d):
                    if k <= local_steps:
                        weights[j] += alpha * delta * phi[row, j]
                    else:
                        change[i, j] = beta * scale * delta * weights[j]
                        total[row, j] += change[i, j] / N
            visited[i], position[i] = row, s
        taken += local_steps + 1
        if written < len(marks) and marks[written] == t + 1:
            phis[written], thetas[written] = phi + total, theta
            written += 1
        total += phi  # the mean of the agents' phi
        if share:
            for j in range(d):
                theta[:, j] = theta[:, j].mean()
        new = _orthonormal(total)
        held = total if share else phi
        for j in range(d):
            for m in range(d):
                turn[j, m] = (new[:, j] * held[:, m]).sum() * d / entries
        for i in range(
            N
        ):  # theta = phi^+ V_i, where an agent's own phi differs from the received one in one row
            own = 0.0
            if not share:
                for j in range(d):
                    own += change[i, j] * theta[i, j] * d / entries
            for j in range(d):
                fresh[j] = new[visited[i], j] * own
                for m in range(d):
                    fresh[j] += turn[j, m] * theta[i, m]
            theta[i] = fresh
        phi[:] = new
    return phis, thetas


@njit(cache=True)
def _orthonormal(phi):  # type: ignore[no-untyped-def]
    """As `linear.orthonormal`, by Gram-Schmidt twice over; phi must have full rank."""
    entries, d = phi.shape
    q = phi.copy()
    for j in range(d):
        for _ in range(2):
            for m in range(j):
                q[:, j] -= (q[:, m] * q[:, j]).sum() * q[:, m]
        q[:, j] /= np.sqrt((q[:, j] ** 2).sum())
    return q * np.sqrt(entries / d)
