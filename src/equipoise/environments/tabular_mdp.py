"""Tabular Markov decision processes as arrays, and their optimal Q-functions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.utils import rng
from equipoise.utils import rng as streams
from equipoise.utils.errors import UsageError

Floats = npt.NDArray[np.float64]
DEFAULT_GAMMA = 0.9
TOY_TEXT = {"frozen-lake": "FrozenLake-v1", "cliff-walking": "CliffWalking-v1", "taxi": "Taxi-v4"}


@dataclass(frozen=True, eq=False)
class TabularMDP:
    """P[s, a, s'] transitions, R[s, a] expected rewards, discount[s'] (gamma, or 0 where s' ends an episode), start[s].

    An episodic task becomes one endless trajectory: a terminal state leads to the start distribution, and the zero
    discount keeps values of the next episode out of the last one.
    """

    P: Floats
    R: Floats
    gamma: float
    start: Floats
    discount: Floats
    name: str = "mdp"

    @property
    def num_states(self) -> int:
        return int(self.P.shape[0])

    @property
    def num_actions(self) -> int:
        return int(self.P.shape[1])

    @cached_property
    def q_star(self) -> Floats:
        return optimal_q(self)


def make_mdp(
    P: npt.ArrayLike,
    R: npt.ArrayLike,
    gamma: float = DEFAULT_GAMMA,
    start: npt.ArrayLike | None = None,
    terminal: npt.ArrayLike | None = None,
    name: str = "mdp",
) -> TabularMDP:
    """Check the arrays of an MDP and freeze them; `start` is uniform and nothing is terminal unless given."""
    if not 0.0 < gamma < 1.0:
        raise UsageError(
            f"{name}: the discount gamma is {gamma}; it must lie strictly between 0 and 1."
        )
    p = _floats(P, "P", name)
    if p.ndim != 3 or p.shape[0] != p.shape[2] or 0 in p.shape:
        raise UsageError(f"{name}: P has shape {p.shape}; give an array [states, actions, states].")
    if (p < 0).any():
        s, a, _ = np.argwhere(p < 0)[0]
        raise UsageError(f"{name}: P[{s}, {a}] has a negative probability; all must be 0 or more.")
    sums = p.sum(axis=2)
    if (np.abs(sums - 1.0) > 1e-8).any():
        s, a = np.argwhere(np.abs(sums - 1.0) > 1e-8)[0]
        raise UsageError(
            f"{name}: P[{s}, {a}] sums to {sums[s, a]:.9g}; every row of probabilities must sum to 1."
        )
    r = _floats(R, "R", name)
    if r.shape != p.shape[:2]:
        raise UsageError(
            f"{name}: R has shape {r.shape}; P wants an array {p.shape[:2]} (one reward per state-action)."
        )
    first = (
        np.full(p.shape[0], 1.0 / p.shape[0]) if start is None else _floats(start, "start", name)
    )
    if first.shape != (p.shape[0],) or (first < 0).any() or abs(first.sum() - 1.0) > 1e-8:
        raise UsageError(f"{name}: start must hold {p.shape[0]} probabilities that sum to 1.")
    discount = np.full(p.shape[0], gamma)
    if terminal is not None:
        ends = np.asarray(terminal)
        if ends.dtype != np.bool_ or ends.shape != (p.shape[0],):
            raise UsageError(f"{name}: terminal must hold {p.shape[0]} booleans, one per state.")
        p, r = p.copy(), r.copy()
        p[ends], r[ends], discount[ends] = first, 0.0, 0.0
    return TabularMDP(
        p / p.sum(axis=2, keepdims=True), r, float(gamma), first / first.sum(), discount, name
    )


def _floats(value: npt.ArrayLike, what: str, name: str) -> Floats:
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise UsageError(
            f"{name}: {what} is not an array of numbers; give one of float64."
        ) from None
    if not np.isfinite(array).all():
        where = ", ".join(str(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise UsageError(f"{name}: {what}[{where}] is not finite; replace every nan and inf.")
    return array


def optimal_q(mdp: TabularMDP, tolerance: float = 1e-12) -> Floats:
    """Q* by value iteration, until the contraction bounds the error by `tolerance` (relative to max |Q*| above 1)."""
    q: Floats = np.zeros_like(mdp.R)
    flat = mdp.P.reshape(-1, mdp.num_states)
    while True:
        new = mdp.R + (flat @ (mdp.discount * q.max(axis=1))).reshape(q.shape)
        bound = float(np.abs(new - q).max()) * mdp.gamma / (1.0 - mdp.gamma)
        q = new
        if bound <= tolerance * max(1.0, float(np.abs(q).max())):
            return q


def two_state(seed: int, actions: int = 20, gamma: float = DEFAULT_GAMMA) -> TabularMDP:
    """The experiment of arXiv 2305.10697: two states, reward 1 in state 1, stay probabilities uniform in [0.4, 0.6]."""
    stay = streams.generator(seed, streams.TWO_STATE).uniform(0.4, 0.6, (2, actions))
    P = np.empty((2, actions, 2))
    P[0, :, 0], P[0, :, 1] = stay[0], 1.0 - stay[0]
    P[1, :, 1], P[1, :, 0] = stay[1], 1.0 - stay[1]
    R = np.zeros((2, actions))
    R[1] = 1.0
    return make_mdp(P, R, gamma, name="two-state")


def garnet(
    seed: int, states: int, actions: int, branching: int, gamma: float = DEFAULT_GAMMA
) -> TabularMDP:
    """A random MDP: `branching` distinct successors per state-action with flat Dirichlet weights, R in [0, 1)."""
    if not 1 <= branching <= states:
        raise UsageError(
            f"garnet: branching is {branching}; it must lie between 1 and the {states} states."
        )
    rng = streams.generator(seed, streams.GARNET)
    P = np.zeros((states, actions, states))
    successors = np.argsort(rng.random(P.shape), axis=2)[:, :, :branching]
    np.put_along_axis(P, successors, rng.dirichlet(np.ones(branching), (states, actions)), axis=2)
    return make_mdp(P, rng.random((states, actions)), gamma, name="garnet")


def perturb(mdp: TabularMDP, seed: int, strength: float) -> TabularMDP:
    """The MDP of an agent elsewhere: rows mixed with random ones on their support, rewards moved, by `strength`."""
    rng = streams.generator(seed, streams.VARIANTS)
    noise = rng.exponential(size=mdp.P.shape) * (mdp.P > 0)
    noise /= noise.sum(axis=2, keepdims=True)
    P = (1.0 - strength) * mdp.P + strength * noise
    R = mdp.R + strength * rng.uniform(-0.5, 0.5, mdp.R.shape)
    return make_mdp(P, R, mdp.gamma, mdp.start, mdp.discount == 0.0, name=f"{mdp.name}, perturbed")


def load_mdp(path: str | Path, gamma: float | None = None) -> TabularMDP:
    """The user's own arrays: an .npz file with P and R, and optionally gamma, start and terminal."""
    try:
        with np.load(path) as stored:
            arrays: dict[str, Any] = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, TypeError, AttributeError):
        raise UsageError(
            f"{path} cannot be read as an .npz file; write one with numpy.savez(path, P=P, R=R)."
        ) from None
    missing = {"P", "R"} - set(arrays)
    if missing:
        raise UsageError(
            f"{path} lacks the array {min(missing)}; it must hold P [S, A, S] and R [S, A]."
        )
    unknown = set(arrays) - {"P", "R", "gamma", "start", "terminal"}
    if unknown:
        raise UsageError(
            f"{path} holds an unknown array {min(unknown)}; known are P, R, gamma, start and terminal."
        )
    stored_gamma = arrays.pop("gamma", DEFAULT_GAMMA)
    if np.size(stored_gamma) != 1 or not np.issubdtype(np.asarray(stored_gamma).dtype, np.number):
        raise UsageError(f"{path}: gamma must be one number.")
    return make_mdp(
        **arrays, gamma=float(stored_gamma) if gamma is None else gamma, name=Path(path).name
    )


def gymnasium_mdp(name: str, gamma: float = DEFAULT_GAMMA, **options: Any) -> TabularMDP:
    """A tabular Gymnasium environment by its transition table, restricted to the states that can be reached."""
    if name not in TOY_TEXT:
        raise UsageError(
            f"There is no toy-text environment '{name}'; known are {', '.join(TOY_TEXT)}."
        )
    try:
        import gymnasium
    except ImportError:
        raise UsageError(
            f"{name} needs Gymnasium; install it with: pip install 'equipoise[rl]'."
        ) from None
    env: Any = gymnasium.make(_newest(gymnasium, TOY_TEXT[name]), **options).unwrapped
    states, actions = len(env.P), len(env.P[0])
    P, R = np.zeros((states, actions, states)), np.zeros((states, actions))
    terminal = np.zeros(states, dtype=np.bool_)
    for s, choices in env.P.items():
        for a, outcomes in choices.items():
            for probability, successor, reward, done in outcomes:
                P[s, a, successor] += probability
                R[s, a] += probability * reward
                terminal[successor] |= done
    start = np.asarray(env.initial_state_distrib, dtype=np.float64)
    env.close()
    whole = make_mdp(P, R, gamma, start, terminal, name)
    keep = _reachable(whole)
    return make_mdp(
        whole.P[keep][:, :, keep], whole.R[keep], gamma, start[keep], terminal[keep], name
    )


def _newest(gymnasium: Any, wanted: str) -> str:
    """Gymnasium renames an environment when its version moves: take the highest version that is registered."""
    stem = wanted.rsplit("-v", 1)[0]
    found = [
        spec.version
        for spec in gymnasium.registry.values()
        if spec.name == stem and spec.version is not None
    ]
    return f"{stem}-v{max(found)}" if found else wanted


def _reachable(mdp: TabularMDP) -> npt.NDArray[np.intp]:
    """Indices of the states that some sequence of actions reaches from the start distribution."""
    edges = np.asarray((mdp.P > 0).any(axis=1))
    seen = np.asarray(mdp.start > 0)
    while True:
        grown = seen | edges[seen].any(axis=0)
        if (grown == seen).all():
            return np.flatnonzero(seen)
        seen = grown


CLIFF_ROWS, CLIFF_COLUMNS = 4, 12
CLIFF_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left: Gymnasium's order
MOVE_DOWN = 2
JUMP_PROBABILITY = 0.1  # chance to go on in any state of a planted MDP


def evenly_spaced(agents: int) -> Floats:
    """The agents' u, evenly over (0, 1): their federation is as diverse for few agents as for many."""
    if agents < 1:
        raise UsageError(f"The number of agents is {agents}; at least one is needed.")
    return (np.arange(agents) + 0.5) / agents


def planted_weights(u: Floats, rank: int) -> Floats:
    """[N, d]: (1, sqrt 2 cos pi u, sqrt 2 cos 2 pi u, ...) / sqrt d: for evenly spread u (N >= d) W'W/N = I/d."""
    waves = np.cos(np.pi * np.outer(u, np.arange(rank)))
    waves[:, 1:] *= np.sqrt(2.0)
    return np.asarray(waves / np.sqrt(rank))


def planted_mdps(
    seed: int, u: Floats, states: int, actions: int, branching: int, rank: int, gamma: float
) -> list[TabularMDP]:
    """Random MDPs whose optimal values are Q^i = B w(u_i) exactly, with one B [S * A, d] for all.

    Transitions go from one random MDP at u = 0 to another at u = 1, with a small chance to jump anywhere: without it
    some draws have states that no agent visits for long, and the theory wants all visited. Rewards follow from the
    Bellman equation, r^i = Q^i - gamma P^i max_a Q^i.
    """
    if not 1 <= rank <= states * actions:
        raise UsageError(
            f"planted rank is {rank}: must lie between 1 and the {states * actions} state-action pairs"
        )
    ends = [garnet(2 * seed + end, states, actions, branching, gamma).P for end in (0, 1)]
    draw = rng.generator(seed, rng.PLANTED).standard_normal((states * actions, rank))
    basis = np.sqrt(states * actions) * np.linalg.qr(draw)[0]
    mdps = []
    for share, weights in zip(u, planted_weights(u, rank), strict=True):
        P = (1.0 - JUMP_PROBABILITY) * (
            (1.0 - share) * ends[0] + share * ends[1]
        ) + JUMP_PROBABILITY / states
        q = (basis @ weights).reshape(states, actions)
        mdps.append(make_mdp(P, q - gamma * P @ q.max(axis=1), gamma, name="planted"))
    return mdps


def windy_cliff_mdps(u: Floats, wind: float, gamma: float, goal: float = 0.0) -> list[TabularMDP]:
    """CliffWalking where, with chance wind * u, a gust moves the agent one cell down instead of where it wanted.

    The table of Gymnasium's CliffWalking at u = 0, with rewards over 100: -0.01 per step, -1 and back to start for a
    fall; ``goal`` is paid for reaching the goal. Cells of the cliff, in which nobody ever stands, have no row.
    """
    if not 0.0 <= wind <= 1.0:
        raise UsageError(f"wind is {wind}: a probability lies between 0 and 1")
    cells = [
        (y, x)
        for y in range(CLIFF_ROWS)
        for x in range(CLIFF_COLUMNS)
        if y < CLIFF_ROWS - 1 or x in (0, CLIFF_COLUMNS - 1)
    ]
    index = {cell: i for i, cell in enumerate(cells)}
    first, goal_cell = index[CLIFF_ROWS - 1, 0], index[CLIFF_ROWS - 1, CLIFF_COLUMNS - 1]
    P, R = (
        np.zeros((len(cells), len(CLIFF_MOVES), len(cells))),
        np.full((len(cells), len(CLIFF_MOVES)), -0.01),
    )
    for s, (y, x) in enumerate(cells):
        for a, (dy, dx) in enumerate(CLIFF_MOVES):
            there = min(max(y + dy, 0), CLIFF_ROWS - 1), min(max(x + dx, 0), CLIFF_COLUMNS - 1)
            P[s, a, index.get(there, first)] = 1.0
            if there not in index:
                R[s, a] = -1.0
            elif index[there] == goal_cell:
                R[s, a] += goal
    start, ends = np.eye(len(cells))[first], np.arange(len(cells)) == goal_cell
    gusts = P[:, [MOVE_DOWN]], R[:, [MOVE_DOWN]]
    return [
        make_mdp(
            (1 - w) * P + w * gusts[0],
            (1 - w) * R + w * gusts[1],
            gamma,
            start,
            ends,
            name="windy-cliff",
        )
        for w in wind * u
    ]


def mdp_under_policy(mdp: TabularMDP, policy: Floats) -> TabularMDP:
    """The chain that a policy [S, A] makes of an MDP, as an MDP with one action: its optimal values are V^policy."""
    P, R = np.einsum("sa,sat->st", policy, mdp.P), (policy * mdp.R).sum(axis=1)
    return make_mdp(
        P[:, None], R[:, None], mdp.gamma, mdp.start, mdp.discount == 0.0, name=mdp.name
    )


def epsilon_greedy_policy(mdp: TabularMDP, epsilon: float) -> Floats:
    """The optimal policy of an MDP, softened: [S, A]."""
    policy = np.full(mdp.R.shape, epsilon / mdp.num_actions)
    policy[np.arange(mdp.num_states), mdp.q_star.argmax(axis=1)] += 1.0 - epsilon
    return policy


BEHAVIOURS = ("fixed", "epsilon", "regions", "uniform")


def behaviour_policies(kind: str, mdp: TabularMDP, agents: int, epsilon: float) -> Floats:
    """The policies of all agents, by name; `epsilon` serves the epsilon-random kind alone."""
    if agents < 1:
        raise UsageError(f"The number of agents is {agents}; at least one is needed.")
    if kind == "fixed":
        return preferred_action_policies(mdp, agents, 0.0)
    if kind == "epsilon":
        return preferred_action_policies(mdp, agents, epsilon)
    if kind == "uniform":
        return preferred_action_policies(mdp, agents, 1.0)
    if kind == "regions":
        return region_policies(mdp, agents)
    raise UsageError(f"There is no behaviour policy '{kind}'; known are {', '.join(BEHAVIOURS)}.")


def preferred_action_policies(mdp: TabularMDP, agents: int, epsilon: float) -> Floats:
    """Agent k plays action k mod A with probability 1 - epsilon, else any action uniformly (0 fixed, 1 uniform)."""
    if not 0.0 <= epsilon <= 1.0:
        raise UsageError(f"epsilon is {epsilon}; a probability lies between 0 and 1.")
    pi = np.full((agents, mdp.num_states, mdp.num_actions), epsilon / mdp.num_actions)
    k = np.arange(agents)
    pi[k, :, k % mdp.num_actions] += 1.0 - epsilon
    return pi


def region_policies(mdp: TabularMDP, agents: int) -> Floats:
    """Agent k plays every action in its own block of states, and outside takes the one action that leads back there.

    With two actions or more no agent covers all state-action pairs alone; together they do, if the MDP lets each agent
    reach its block.
    """
    blocks = min(agents, mdp.num_states)
    block_of = np.arange(mdp.num_states) * blocks // mdp.num_states
    pi = np.zeros((agents, mdp.num_states, mdp.num_actions))
    for block in range(blocks):
        inside = block_of == block
        pi[block::blocks, inside] = 1.0 / mdp.num_actions
        outside = np.flatnonzero(~inside)
        pi[block::blocks, outside, _action_towards(mdp, inside)[outside]] = 1.0
    return pi


def _action_towards(
    mdp: TabularMDP, goal: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """In each state the action with the largest discounted chance of entering `goal`, by value iteration."""
    value = goal.astype(np.float64)
    while True:
        q = 0.99 * (mdp.P @ value)
        new = np.where(goal, 1.0, q.max(axis=1))
        if np.abs(new - value).max() < 1e-9:
            return np.asarray(q.argmax(axis=1))
        value = new
