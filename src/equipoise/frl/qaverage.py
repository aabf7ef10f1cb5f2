"""The server's half of federated Q-learning: three ways to make one table of K tables, compiled.

Shapes: q, evidence and counts [K, E] of the agents that replied, E = simulations x states x actions; the result is [E].
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import numpy as np
from numba import njit, prange

from equipoise.frl.mdp import Floats

_UNDERFLOW = 745.2  # exp(-745.2) is 0 in float64
_BLOCK = 512  # entries that one unit of parallel work carries through all agents, within the cache


def decay_powers(eta: float, longest: int) -> Floats:
    """(1 - eta)^n for n = 0, 1, ... up to `longest`, or to the first that underflows and stands for the rest."""
    rate = -np.log1p(-eta)
    powers: Floats = np.exp(-rate * np.arange(min(longest, int(np.ceil(_UNDERFLOW / rate))) + 1))
    return powers


@njit(cache=True, parallel=True)
def average_equal(q):  # type: ignore[no-untyped-def]
    """EqAvg: the plain mean."""
    K, entries = q.shape
    out = np.zeros(entries)
    for block in prange((entries + _BLOCK - 1) // _BLOCK):
        low, high = block * _BLOCK, min(entries, (block + 1) * _BLOCK)
        for k in range(K):
            for i in range(low, high):
                out[i] += q[k, i]
        for i in range(low, high):
            out[i] /= K
    return out


@njit(cache=True, parallel=True)
def average_importance(q, counts, powers):  # type: ignore[no-untyped-def]
    """ImAvg: weights (1 - eta)^(-N), as (1 - eta)^(N_max - N): the softmax of -N log(1 - eta), free of overflow."""
    K, entries = q.shape
    last = len(powers) - 1
    out = np.zeros(entries)
    for block in prange((entries + _BLOCK - 1) // _BLOCK):
        low, high = block * _BLOCK, min(entries, (block + 1) * _BLOCK)
        most, total = np.zeros(_BLOCK, np.int64), np.zeros(_BLOCK)
        for k in range(K):
            for i in range(low, high):
                most[i - low] = max(most[i - low], counts[k, i])
        for k in range(K):
            for i in range(low, high):
                w = powers[min(most[i - low] - counts[k, i], last)]
                total[i - low] += w
                out[i] += w * q[k, i]
        for i in range(low, high):
            out[i] /= total[i - low]
    return out


@njit(cache=True, parallel=True)
def average_targets(evidence, counts, current, powers):  # type: ignore[no-untyped-def]
    """TaAvg (ours): the mean targets that the agents saw, weighted by what each is worth, applied to the current table.

    An agent that started from a table q0 and visited an entry N times holds q = d q0 + (1 - d) T with d = (1 - eta)^N
    and T its discounted mean target, of effective sample size proportional to (1 - d) / (1 + d). Its evidence is
    q - d q0 = (1 - d) T. Entries that nobody visited keep their current value.
    """
    K, entries = evidence.shape
    last = len(powers) - 1
    out = np.zeros(entries)
    for block in prange((entries + _BLOCK - 1) // _BLOCK):
        low, high = block * _BLOCK, min(entries, (block + 1) * _BLOCK)
        total, moved = np.zeros(_BLOCK), np.zeros(_BLOCK)
        for k in range(K):
            for i in range(low, high):
                d = powers[min(counts[k, i], last)]
                w = (1.0 - d) / (1.0 + d)
                total[i - low] += w
                moved[i - low] += w * (1.0 - d)
                out[i] += w * evidence[k, i]
        for i in range(low, high):
            if total[i - low] > 0.0:
                out[i] = (1.0 - moved[i - low] / total[i - low]) * current[i] + out[i] / total[i - low]
            else:
                out[i] = current[i]
    return out
