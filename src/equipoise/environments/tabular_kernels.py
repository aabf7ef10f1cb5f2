"""Compiled local steps and averages of federated Q-learning.

A walker is one agent in one simulation; its number is agent * sims + simulation. Its table is a row
of q ``[walkers, S, A]``; agent[walker] selects its policy and env[walker] its MDP. Walkers run in
parallel, the steps of a walker one after another.

Random numbers are a hash of (seed, simulation, agent, stream, step), so that neither threads nor
the split into rounds change a result. Only the fast-math flags `nnan` and `nsz` are set: they let
row maxima vectorise and change no finite value, and sums keep their order.
"""

# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit, prange

from equipoise.environments.tabular_mdp import Floats

Words = npt.NDArray[np.uint64]

# Increment and mixer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_R27 = np.uint64(27)
_R30 = np.uint64(30)
_R31 = np.uint64(31)
_R32 = np.uint64(32)
_LOW32 = np.uint64(0xFFFFFFFF)
_FASTMATH = {"nnan", "nsz"}
_LANES = 8  # walkers interleaved in one loop, so that their memory loads overlap
_CHUNKS = 64  # units of parallel work; fixed, so that scheduling does not change a result
_UNDERFLOW = 745.2  # exp(-745.2) is 0 in float64
_BLOCK = 512  # entries of one unit of parallel work in averages; they stay in the cache


class AliasTables(NamedTuple):
    """Alias tables of distributions ``[..., n]``: sampling is one draw and one comparison."""

    threshold: npt.NDArray[np.uint32]
    """``[..., cells]``: Below it (of 2^32) the first outcome is drawn, else the second."""
    outcome: npt.NDArray[np.uint32]
    """``[..., cells, 2]``: The two possible outcomes of a cell."""


@njit(inline="always")
def _mix(x):  # type: ignore[no-untyped-def]
    """Mix the bits of x (SplitMix64)."""
    x = (x ^ (x >> _R30)) * _M1
    x = (x ^ (x >> _R27)) * _M2
    return x ^ (x >> _R31)


@njit(cache=True)
def stream_keys(seed: int, stream: int, agents: int, sims: int) -> Words:
    """Return one key per walker, ``[agents * sims]``.

    Draw number t of a stream is mix(key + (t + 1) * golden), as in `equipoise.utils.rng`.
    """
    keys = np.empty(agents * sims, np.uint64)
    root = _mix(_mix(np.uint64(seed) + _GOLDEN) ^ np.uint64(stream))
    for k in range(agents):
        branch = _mix(root + np.uint64(k + 1) * _GOLDEN)
        for sim in range(sims):
            keys[k * sims + sim] = _mix(branch + np.uint64(sim + 1) * _GOLDEN)
    return keys


def skip_draws(keys: Words, draws: npt.NDArray[np.int64]) -> Words:
    """Return keys whose next draw is number `draws` of the stream."""
    return keys + draws.astype(np.uint64) * _GOLDEN


def alias_tables(p: Floats) -> AliasTables:
    """Build alias tables of distributions ``[..., n]``; probabilities are exact to about 2^-32."""
    rows = np.ascontiguousarray(p.reshape(-1, p.shape[-1]))
    cells = int((rows > 0).sum(axis=1).max())
    threshold, outcome = _vose(rows, cells)
    return AliasTables(
        threshold.reshape(*p.shape[:-1], cells), outcome.reshape(*p.shape[:-1], cells, 2)
    )


@njit(cache=True)
def _vose(rows, cells):  # type: ignore[no-untyped-def]
    """Build alias tables over the support of every row by Vose's algorithm (1991)."""
    threshold = np.empty((len(rows), cells), np.uint32)
    outcome = np.empty((len(rows), cells, 2), np.uint32)
    mass = np.empty(cells)
    label = np.empty(cells, np.uint32)
    small = np.empty(cells, np.int64)
    large = np.empty(cells, np.int64)
    for row in range(len(rows)):
        used = 0
        for j in range(rows.shape[1]):
            if rows[row, j] > 0:
                mass[used] = rows[row, j] * cells
                label[used] = j
                used += 1
        for j in range(used, cells):
            mass[j] = 0.0
            label[j] = label[0]
        n_small = 0
        n_large = 0
        for j in range(cells):
            outcome[row, j, 0] = label[j]
            outcome[row, j, 1] = label[j]
            threshold[row, j] = _LOW32
            if mass[j] < 1.0:
                small[n_small] = j
                n_small += 1
            else:
                large[n_large] = j
                n_large += 1
        while n_small > 0 and n_large > 0:
            n_small -= 1
            lesser = small[n_small]
            greater = large[n_large - 1]
            threshold[row, lesser] = min(np.int64(mass[lesser] * 2.0**32 + 0.5), np.int64(_LOW32))
            outcome[row, lesser, 1] = label[greater]
            mass[greater] -= 1.0 - mass[lesser]
            if mass[greater] < 1.0:
                n_large -= 1
                small[n_small] = greater
                n_small += 1
    return threshold, outcome


@njit(cache=True, parallel=True, fastmath=_FASTMATH)
def walk_fixed(  # type: ignore[no-untyped-def]
    q, counts, position, agent, env, key, action, threshold, outcome, reward, discount, steps, eta
):
    """Take `steps` updates of every walker under deterministic policies action[k, s].

    q, counts and position change in place. An agent that always plays a(s) changes one entry per
    row, so the maximum over the other entries is constant during the call. A step is then one table
    look-up, one comparison and one multiply-add.
    """
    walkers, S, A = q.shape
    cells = threshold.shape[3]
    keep = 1.0 - eta
    width = np.uint64(cells)
    S_ = np.uint64(S)
    groups = (walkers + _LANES - 1) // _LANES
    for chunk in prange(_CHUNKS):
        own = np.empty(_LANES * S)  # Q(s, a(s))
        others = np.empty(_LANES * S)  # max over the other actions
        pay = np.empty(_LANES * S)
        gamma = np.empty(_LANES * S)
        visits = np.empty(_LANES * S, np.int64)
        limit = np.empty(_LANES * S * cells, np.uint64)
        target = np.empty(_LANES * S * cells * 2, np.uint64)
        at = np.empty(_LANES, np.uint64)
        clock = np.empty(_LANES, np.uint64)
        for group in range(chunk * groups // _CHUNKS, (chunk + 1) * groups // _CHUNKS):
            low = group * _LANES
            lanes = min(_LANES, walkers - low)
            for lane in range(lanes):
                walker = low + lane
                e = env[walker]
                k = agent[walker]
                at[lane] = np.uint64(position[walker] + lane * S)
                clock[lane] = key[walker]
                for s in range(S):
                    a = action[k, s]
                    i = lane * S + s
                    own[i] = q[walker, s, a]
                    pay[i] = reward[e, s, a]
                    gamma[i] = discount[e, s]
                    visits[i] = 0
                    best = -np.inf
                    for b in range(a):
                        best = max(best, q[walker, s, b])
                    for b in range(a + 1, A):
                        best = max(best, q[walker, s, b])
                    others[i] = best
                    for c in range(cells):
                        limit[i * cells + c] = threshold[e, s, a, c]
                        for side in range(2):
                            state = outcome[e, s, a, c, side] + np.uint64(lane * S)
                            target[(i * cells + c) * 2 + side] = state
            for _ in range(steps):
                for lane in range(np.uint64(lanes)):
                    clock[lane] += _GOLDEN
                    x = _mix(clock[lane])
                    s = at[lane]
                    cell = s * width + (((x >> _R32) * width) >> _R32)
                    s2 = target[cell + cell + np.uint64((x & _LOW32) >= limit[cell])]
                    own[s] = keep * own[s] + eta * (pay[s] + gamma[s2] * max(others[s2], own[s2]))
                    visits[s] += 1
                    at[lane] = s2
            for lane in range(lanes):
                walker = low + lane
                position[walker] = np.int64(at[lane] - np.uint64(lane) * S_)
                for s in range(S):
                    a = action[agent[walker], s]
                    q[walker, s, a] = own[lane * S + s]
                    counts[walker, s, a] += visits[lane * S + s]


@njit(cache=True, parallel=True, fastmath=_FASTMATH)
def walk_random(  # type: ignore[no-untyped-def]
    q,
    counts,
    position,
    agent,
    env,
    key,
    choice_key,
    choice_limit,
    choice,
    threshold,
    outcome,
    reward,
    discount,
    steps,
    eta,
):
    """Take `steps` updates of every walker under stochastic policies (as alias tables).

    q, counts and position change in place. A row's maximum is carried along and recomputed only
    when its largest entry fell.
    """
    walkers, S, A = q.shape
    options = np.uint64(choice_limit.shape[2])
    cells = np.uint64(threshold.shape[3])
    keep = 1.0 - eta
    for chunk in prange(_CHUNKS):
        best = np.empty(S)
        for walker in range(chunk * walkers // _CHUNKS, (chunk + 1) * walkers // _CHUNKS):
            table = q[walker]
            visits = counts[walker]
            e = env[walker]
            k = agent[walker]
            s = np.uint64(position[walker])
            for row in range(S):
                best[row] = _row_max(table, row, A)
            for t in range(1, steps + 1):
                x = _mix(choice_key[walker] + np.uint64(t) * _GOLDEN)
                cell = ((x >> _R32) * options) >> _R32
                a = choice[k, s, cell, np.uint64((x & _LOW32) >= choice_limit[k, s, cell])]
                x = _mix(key[walker] + np.uint64(t) * _GOLDEN)
                cell = ((x >> _R32) * cells) >> _R32
                s2 = outcome[e, s, a, cell, np.uint64((x & _LOW32) >= threshold[e, s, a, cell])]
                old = table[s, a]
                new = keep * old + eta * (reward[e, s, a] + discount[e, s2] * best[s2])
                table[s, a] = new
                visits[s, a] += 1
                if new >= best[s]:
                    best[s] = new
                elif old >= best[s]:
                    best[s] = _row_max(table, s, A)
                s = np.uint64(s2)
            position[walker] = np.int64(s)


@njit(cache=True, parallel=True, fastmath=_FASTMATH)
def sweep(q, env, key, threshold, outcome, reward, discount, steps, eta):  # type: ignore[no-untyped-def]
    """Take `steps` synchronous updates (FedSynQ), which sample every state-action pair once."""
    walkers, S, A = q.shape
    cells = np.uint64(threshold.shape[3])
    keep = 1.0 - eta
    for walker in prange(walkers):
        table = q[walker]
        e = env[walker]
        ahead = np.empty(S)
        clock = key[walker]
        for _ in range(steps):
            for s in range(S):
                ahead[s] = discount[e, s] * _row_max(table, s, A)
            for s in range(S):
                for a in range(A):
                    clock += _GOLDEN
                    x = _mix(clock)
                    cell = ((x >> _R32) * cells) >> _R32
                    s2 = outcome[e, s, a, cell, np.uint64((x & _LOW32) >= threshold[e, s, a, cell])]
                    table[s, a] = keep * table[s, a] + eta * (reward[e, s, a] + ahead[s2])


@njit(cache=True, parallel=True, fastmath=_FASTMATH)
def backup_difference(  # type: ignore[no-untyped-def]
    q, reference, env, key, threshold, outcome, discount, samples
):
    """Replace q by the difference of two backups: mean of discount(s') (max q - max reference).

    Every state-action pair is sampled `samples` times, with the same s' for both tables.
    """
    walkers, S, A = q.shape
    cells = np.uint64(threshold.shape[3])
    for walker in prange(walkers):
        table = q[walker]
        e = env[walker]
        ahead = np.empty(S)
        clock = key[walker]
        for s in range(S):
            ahead[s] = discount[e, s] * (_row_max(table, s, A) - _row_max(reference[walker], s, A))
        table[:] = 0.0
        for _ in range(samples):
            for s in range(S):
                for a in range(A):
                    clock += _GOLDEN
                    x = _mix(clock)
                    cell = ((x >> _R32) * cells) >> _R32
                    s2 = outcome[e, s, a, cell, np.uint64((x & _LOW32) >= threshold[e, s, a, cell])]
                    table[s, a] += ahead[s2]
        table /= samples


@njit(inline="always")
def _row_max(table, s, A):  # type: ignore[no-untyped-def]
    """Return the maximum of a row."""
    best = table[s, 0]
    for a in range(1, A):
        best = max(best, table[s, a])
    return best


def decay_powers(eta: float, longest: int) -> Floats:
    """Return (1 - eta)^n for n = 0, ..., `longest`.

    The array ends at the first power that underflows; it stands for all higher ones.
    """
    rate = -np.log1p(-eta)
    last = min(longest, int(np.ceil(_UNDERFLOW / rate)))
    powers: Floats = np.exp(-rate * np.arange(last + 1))
    return powers


@njit(cache=True, parallel=True)
def average_equal(q):  # type: ignore[no-untyped-def]
    """EqAvg: return the plain mean of q ``[K, entries]``."""
    K, entries = q.shape
    out = np.zeros(entries)
    for block in prange((entries + _BLOCK - 1) // _BLOCK):
        low = block * _BLOCK
        high = min(entries, (block + 1) * _BLOCK)
        for k in range(K):
            for i in range(low, high):
                out[i] += q[k, i]
        for i in range(low, high):
            out[i] /= K
    return out


@njit(cache=True, parallel=True)
def average_importance(q, counts, powers):  # type: ignore[no-untyped-def]
    """ImAvg: return the mean with weights (1 - eta)^(-N).

    Weights are scaled to (1 - eta)^(N_max - N): the softmax of -N log(1 - eta), without overflow.
    """
    K, entries = q.shape
    last = len(powers) - 1
    out = np.zeros(entries)
    for block in prange((entries + _BLOCK - 1) // _BLOCK):
        low = block * _BLOCK
        high = min(entries, (block + 1) * _BLOCK)
        n_max = np.zeros(_BLOCK, np.int64)
        total = np.zeros(_BLOCK)
        for k in range(K):
            for i in range(low, high):
                n_max[i - low] = max(n_max[i - low], counts[k, i])
        for k in range(K):
            for i in range(low, high):
                w = powers[min(n_max[i - low] - counts[k, i], last)]
                total[i - low] += w
                out[i] += w * q[k, i]
        for i in range(low, high):
            out[i] /= total[i - low]
    return out


@njit(cache=True, parallel=True)
def average_targets(evidence, counts, current, powers):  # type: ignore[no-untyped-def]
    """TaAvg: apply the agents' mean targets to the current table, weighted by their sample sizes.

    An agent that started from q0 and visited an entry N times holds q = d q0 + (1 - d) T with
    d = (1 - eta)^N and T its discounted mean target, whose effective sample size is proportional to
    (1 - d) / (1 + d). Its evidence is q - d q0 = (1 - d) T. Entries that no agent visited keep
    their current value.
    """
    K, entries = evidence.shape
    last = len(powers) - 1
    out = np.zeros(entries)
    for block in prange((entries + _BLOCK - 1) // _BLOCK):
        low = block * _BLOCK
        high = min(entries, (block + 1) * _BLOCK)
        total = np.zeros(_BLOCK)
        moved = np.zeros(_BLOCK)
        for k in range(K):
            for i in range(low, high):
                d = powers[min(counts[k, i], last)]
                w = (1.0 - d) / (1.0 + d)
                total[i - low] += w
                moved[i - low] += w * (1.0 - d)
                out[i] += w * evidence[k, i]
        for i in range(low, high):
            if total[i - low] > 0.0:
                stay = 1.0 - moved[i - low] / total[i - low]
                out[i] = stay * current[i] + out[i] / total[i - low]
            else:
                out[i] = current[i]
    return out
