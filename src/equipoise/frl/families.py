"""Families of MDPs that differ by one number u in (0, 1) per agent, agent i of N at u = (i + 1/2) / N."""

from __future__ import annotations

import numpy as np

from equipoise.core import streams
from equipoise.core.errors import UsageError
from equipoise.frl.mdp import Floats, TabularMDP, garnet, make_mdp

ROWS, COLUMNS = 4, 12
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left: Gymnasium's order
DOWN = 2
JUMP = 0.1  # chance to go on in any state of a planted MDP


def spread(agents: int) -> Floats:
    """The agents' u, evenly over (0, 1): their federation is as diverse for few agents as for many."""
    if agents < 1:
        raise UsageError(f"The number of agents is {agents}; at least one is needed.")
    return (np.arange(agents) + 0.5) / agents


def planted_weights(u: Floats, rank: int) -> Floats:
    """[N, d]: (1, sqrt 2 cos pi u, sqrt 2 cos 2 pi u, ...) / sqrt d: for evenly spread u (N >= d) W'W/N = I/d."""
    waves = np.cos(np.pi * np.outer(u, np.arange(rank)))
    waves[:, 1:] *= np.sqrt(2.0)
    return np.asarray(waves / np.sqrt(rank))


def planted(
    seed: int, u: Floats, states: int, actions: int, branching: int, rank: int, gamma: float
) -> list[TabularMDP]:
    """Random MDPs whose optimal values are Q^i = B w(u_i) exactly, with one B [S * A, d] for all.

    Transitions go from one random MDP at u = 0 to another at u = 1, with a small chance to jump anywhere: without it
    some draws have states that no agent visits for long, and the theory wants all visited. Rewards follow from the
    Bellman equation, r^i = Q^i - gamma P^i max_a Q^i.
    """
    if not 1 <= rank <= states * actions:
        raise UsageError(f"planted rank is {rank}: must lie between 1 and the {states * actions} state-action pairs")
    ends = [garnet(2 * seed + end, states, actions, branching, gamma).P for end in (0, 1)]
    draw = streams.generator(seed, streams.PLANTED).standard_normal((states * actions, rank))
    basis = np.sqrt(states * actions) * np.linalg.qr(draw)[0]
    mdps = []
    for share, weights in zip(u, planted_weights(u, rank), strict=True):
        P = (1.0 - JUMP) * ((1.0 - share) * ends[0] + share * ends[1]) + JUMP / states
        q = (basis @ weights).reshape(states, actions)
        mdps.append(make_mdp(P, q - gamma * P @ q.max(axis=1), gamma, name="planted"))
    return mdps


def windy_cliff(u: Floats, wind: float, gamma: float, goal: float = 0.0) -> list[TabularMDP]:
    """CliffWalking where, with chance wind * u, a gust moves the agent one cell down instead of where it wanted.

    The table of Gymnasium's CliffWalking at u = 0, with rewards over 100: -0.01 per step, -1 and back to start for a
    fall; ``goal`` is paid for reaching the goal. Cells of the cliff, in which nobody ever stands, have no row.
    """
    if not 0.0 <= wind <= 1.0:
        raise UsageError(f"wind is {wind}: a probability lies between 0 and 1")
    cells = [(y, x) for y in range(ROWS) for x in range(COLUMNS) if y < ROWS - 1 or x in (0, COLUMNS - 1)]
    index = {cell: i for i, cell in enumerate(cells)}
    first, goal_cell = index[ROWS - 1, 0], index[ROWS - 1, COLUMNS - 1]
    P, R = np.zeros((len(cells), len(MOVES), len(cells))), np.full((len(cells), len(MOVES)), -0.01)
    for s, (y, x) in enumerate(cells):
        for a, (dy, dx) in enumerate(MOVES):
            there = min(max(y + dy, 0), ROWS - 1), min(max(x + dx, 0), COLUMNS - 1)
            P[s, a, index.get(there, first)] = 1.0
            if there not in index:
                R[s, a] = -1.0
            elif index[there] == goal_cell:
                R[s, a] += goal
    start, ends = np.eye(len(cells))[first], np.arange(len(cells)) == goal_cell
    gusts = P[:, [DOWN]], R[:, [DOWN]]
    return [
        make_mdp((1 - w) * P + w * gusts[0], (1 - w) * R + w * gusts[1], gamma, start, ends, name="windy-cliff")
        for w in wind * u
    ]


def under_policy(mdp: TabularMDP, policy: Floats) -> TabularMDP:
    """The chain that a policy [S, A] makes of an MDP, as an MDP with one action: its optimal values are V^policy."""
    P, R = np.einsum("sa,sat->st", policy, mdp.P), (policy * mdp.R).sum(axis=1)
    return make_mdp(P[:, None], R[:, None], mdp.gamma, mdp.start, mdp.discount == 0.0, name=mdp.name)


def soft_greedy(mdp: TabularMDP, epsilon: float) -> Floats:
    """The optimal policy of an MDP, softened: [S, A]."""
    policy = np.full(mdp.R.shape, epsilon / mdp.actions)
    policy[np.arange(mdp.states), mdp.q_star.argmax(axis=1)] += 1.0 - epsilon
    return policy
