"""Compiled steps of TD and Q-learning with features, Q(s, a) = phi(s, a) . theta.

A walker is one agent with phi[walker] ``[S A, d]``, theta[walker] ``[d]`` and its own MDP
env[walker]. With one action this is policy evaluation. Walkers run in parallel. Random numbers are
those of `tabular_kernels`: a hash of (seed, agent, stream, step), for any number of threads and
rounds.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import numpy as np
from numba import njit, prange

from equipoise.environments.tabular_kernels import _CHUNKS, _GOLDEN, _LOW32, _R32, _mix

# The mean of squared TD errors is exact for the first 100 steps, then an EMA with this weight.
MIN_EMA_WEIGHT = 0.01


@njit(cache=True, parallel=True)
def walk_features(  # type: ignore[no-untyped-def]
    phi,
    theta,
    position,
    sq_td_error,
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
    """Take steps[w] steps of every walker at rate[w].

    phi, theta, position and sq_td_error (a walker's mean of delta^2) change in place. A step is
    theta += rate delta phi(s, a) and phi(s, a) += rate scale delta theta, both with the values
    before the step. `moves` says whether phi and theta learn, and whether steps on phi are relative
    (see `relative_scale`). `taken` are the walker's steps before these.
    """
    walkers, _, d = phi.shape
    move_phi, move_theta, relative = moves
    for chunk in prange(_CHUNKS):
        for w in range(chunk * walkers // _CHUNKS, (chunk + 1) * walkers // _CHUNKS):
            features = phi[w]
            weights = theta[w]
            e = env[w]
            s = position[w]
            for t in range(1, steps[w] + 1):
                tables = (threshold[e], outcome[e], reward[e], discount[e])
                row, delta, s = transition(
                    features, weights, s, key[w], choice_key[w], t, epsilon, tables
                )
                ema = max(MIN_EMA_WEIGHT, 1.0 / (taken[w] + t))
                sq_td_error[w] += (delta * delta - sq_td_error[w]) * ema
                scale = relative_scale(weights, sq_td_error[w]) if relative else 1.0
                for j in range(d):
                    f = features[row, j]
                    v = weights[j]
                    if move_theta:
                        weights[j] = v + rate[w] * delta * f
                    if move_phi:
                        features[row, j] = f + rate[w] * scale * delta * v
            position[w] = s


@njit(inline="always")
def transition(features, weights, s, key, choice_key, t, epsilon, tables):  # type: ignore[no-untyped-def]
    """Take step number t from state s with the epsilon-greedy policy.

    Returns (row, delta, s'): the visited row, the next state s' and the TD error
    delta = r + discount(s') max_a' phi(s', a') theta - phi(s, a) theta.
    """
    threshold, outcome, reward, discount = tables
    A = reward.shape[1]
    cells = np.uint64(threshold.shape[2])
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
def relative_scale(weights, sq_td_error):  # type: ignore[no-untyped-def]
    """Return 1 / (|theta|^2 + mean delta^2).

    delta theta times this does not depend on the unit of rewards, and is never large.
    """
    total = sq_td_error
    for j in range(len(weights)):
        total += weights[j] * weights[j]
    return 1.0 / total if total > 0.0 else 0.0


@njit(inline="always")
def _dot(features, row, weights):  # type: ignore[no-untyped-def]
    """Return the value of a row."""
    total = 0.0
    for j in range(len(weights)):
        total += features[row, j] * weights[j]
    return total


@njit(inline="always")
def _best(features, weights, s, A):  # type: ignore[no-untyped-def]
    """Return the first action of largest value, and that value."""
    action = 0
    value = _dot(features, s * A, weights)
    for a in range(1, A):
        q = _dot(features, s * A + a, weights)
        if q > value:
            action = a
            value = q
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
    """Run whole rounds of `pfedtd-rep` and its variants, for experiments of many rounds.

    phi ``[S A, d]`` is the server's (normalised), theta ``[N, d]`` the agents'; rates ``[T, 2]``
    are alpha_t and beta_t. `share` says whether theta is averaged too, `relative` whether steps on
    phi are relative. Returns phi and theta as trained after each round of `marks` (ascending from
    1).
    """
    entries, d = phi.shape
    N = len(theta)
    T = len(rates)
    phis = np.empty((len(marks), entries, d))
    thetas = np.empty((len(marks), N, d))
    change = np.empty((N, d))  # of the one row of phi that an agent changed
    visited = np.empty(N, np.int64)  # that row
    total = np.empty((entries, d))
    sq_td_error = np.zeros(N)
    taken = 0
    written = 0
    for t in range(T):
        alpha, beta = rates[t]
        total[:] = 0.0
        for i in range(N):
            weights = theta[i]
            s = position[i]
            for k in range(1, local_steps + 2):
                tables = (threshold[i], outcome[i], reward[i], discount[i])
                row, delta, s = transition(
                    phi, weights, s, key[i], choice_key[i], taken + k, epsilon, tables
                )
                ema = max(MIN_EMA_WEIGHT, 1.0 / (taken + k))
                sq_td_error[i] += (delta * delta - sq_td_error[i]) * ema
                scale = relative_scale(weights, sq_td_error[i]) if relative else 1.0
                for j in range(d):
                    if k <= local_steps:
                        weights[j] += alpha * delta * phi[row, j]
                    else:
                        change[i, j] = beta * scale * delta * weights[j]
                        total[row, j] += change[i, j] / N
            visited[i] = row
            position[i] = s
        taken += local_steps + 1
        if written < len(marks) and marks[written] == t + 1:
            phis[written] = phi + total
            thetas[written] = theta
            written += 1
        total += phi  # the mean of the agents' phi
        if share:
            for j in range(d):
                theta[:, j] = theta[:, j].mean()
        _change_basis(phi, theta, total, change, visited, share)
    return phis, thetas


@njit(cache=True)
def _change_basis(phi, theta, mean_phi, change, visited, share):  # type: ignore[no-untyped-def]
    """Make the mean of the agents' phi orthonormal, and express theta in the new basis.

    theta becomes phi^+ V_i, the least-squares weights of the agent's values V_i. An agent's own phi
    differs from the received one in the row ``visited[i]`` alone, by ``change[i]``. phi and theta
    change in place.
    """
    entries, d = phi.shape
    new_phi = _orthonormal(mean_phi)
    old_phi = mean_phi if share else phi
    rotation = np.empty((d, d))  # from the old to the new basis
    for j in range(d):
        for m in range(d):
            rotation[j, m] = (new_phi[:, j] * old_phi[:, m]).sum() * d / entries
    new_theta = np.empty(d)
    for i in range(len(theta)):
        own = 0.0  # what the agent's own row adds
        if not share:
            for j in range(d):
                own += change[i, j] * theta[i, j] * d / entries
        for j in range(d):
            new_theta[j] = new_phi[visited[i], j] * own
            for m in range(d):
                new_theta[j] += rotation[j, m] * theta[i, m]
        theta[i] = new_theta
    phi[:] = new_phi


@njit(cache=True)
def _orthonormal(phi):  # type: ignore[no-untyped-def]
    """Compute `linear_mdp.orthonormal` by Gram-Schmidt, twice; phi must have full rank."""
    entries, d = phi.shape
    q = phi.copy()
    for j in range(d):
        for _ in range(2):
            for m in range(j):
                q[:, j] -= (q[:, m] * q[:, j]).sum() * q[:, m]
        q[:, j] /= np.sqrt((q[:, j] ** 2).sum())
    return q * np.sqrt(entries / d)
