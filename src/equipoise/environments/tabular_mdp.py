"""Tabular Markov decision processes as arrays: construction, optimal values and policies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.utils import rng as streams
from equipoise.utils.errors import UsageError, install_hint

Floats = npt.NDArray[np.float64]
DEFAULT_GAMMA = 0.9
PROBABILITY_TOLERANCE = 1e-8
TOY_TEXT = {"frozen-lake": "FrozenLake-v1", "cliff-walking": "CliffWalking-v1", "taxi": "Taxi-v4"}
BEHAVIOURS = ("fixed", "epsilon", "regions", "uniform")
CLIFF_ROWS = 4
CLIFF_COLUMNS = 12
CLIFF_MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left: Gymnasium's order
MOVE_DOWN = 2
JUMP_PROBABILITY = 0.1  # of a jump to any state in a planted MDP


@dataclass(frozen=True, eq=False)
class TabularMDP:
    """A Markov decision process with S states and A actions.

    An episodic task becomes one endless trajectory: a terminal state leads to the start
    distribution, and its discount of zero separates the episodes' values.
    """

    P: Floats
    """``[S, A, S]``: Transition probabilities P[s, a, s']."""
    R: Floats
    """``[S, A]``: Expected rewards."""
    gamma: float
    start: Floats
    """``[S]``: Start distribution."""
    discount: Floats
    """``[S]``: Discount of the value of s': gamma, or 0 if s' is terminal."""
    name: str = "mdp"

    @property
    def num_states(self) -> int:
        """Number of states S."""
        return int(self.P.shape[0])

    @property
    def num_actions(self) -> int:
        """Number of actions A."""
        return int(self.P.shape[1])

    @cached_property
    def q_star(self) -> Floats:
        """Optimal Q-function, ``[S, A]``."""
        return optimal_q(self)


def make_mdp(
    P: npt.ArrayLike,
    R: npt.ArrayLike,
    gamma: float = DEFAULT_GAMMA,
    start: npt.ArrayLike | None = None,
    terminal: npt.ArrayLike | None = None,
    name: str = "mdp",
) -> TabularMDP:
    """Check the arrays of an MDP and build it.

    Args:
        P: Transition probabilities, ``[S, A, S]``.
        R: Expected rewards, ``[S, A]``.
        gamma: Discount factor in (0, 1).
        start: Start distribution ``[S]``; uniform if None.
        terminal: Whether each state ends an episode, ``[S]``; none does if None.
        name: Name for messages.

    Returns:
        The MDP.

    Raises:
        UsageError: If an array has a wrong shape or holds wrong numbers.
    """
    if not 0.0 < gamma < 1.0:
        raise UsageError(
            f"{name}: the discount gamma is {gamma}; it must lie strictly between 0 and 1."
        )
    p = _float_array(P, "P", name)
    _check_transitions(p, name)
    r = _float_array(R, "R", name)
    if r.shape != p.shape[:2]:
        raise UsageError(
            f"{name}: R has shape {r.shape}; P wants an array {p.shape[:2]} "
            "(one reward per state-action)."
        )
    states = p.shape[0]
    first = np.full(states, 1.0 / states)
    if start is not None:
        first = _float_array(start, "start", name)
    off = first.shape != (states,) or abs(first.sum() - 1.0) > PROBABILITY_TOLERANCE
    if off or (first < 0).any():
        raise UsageError(f"{name}: start must hold {states} probabilities that sum to 1.")
    discount = np.full(states, gamma)
    if terminal is not None:
        ends = np.asarray(terminal)
        if ends.dtype != np.bool_ or ends.shape != (states,):
            raise UsageError(f"{name}: terminal must hold {states} booleans, one per state.")
        p[ends] = first
        r[ends] = 0.0
        discount[ends] = 0.0
    p = p / p.sum(axis=2, keepdims=True)
    return TabularMDP(p, r, float(gamma), first / first.sum(), discount, name)


def _check_transitions(p: Floats, name: str) -> None:
    """Raise a UsageError unless p is an array ``[S, A, S]`` of probabilities."""
    if p.ndim != 3 or p.shape[0] != p.shape[2] or 0 in p.shape:
        raise UsageError(f"{name}: P has shape {p.shape}; give an array [states, actions, states].")
    if (p < 0).any():
        s, a, _ = np.argwhere(p < 0)[0]
        raise UsageError(f"{name}: P[{s}, {a}] has a negative probability; all must be 0 or more.")
    sums = p.sum(axis=2)
    wrong = np.abs(sums - 1.0) > PROBABILITY_TOLERANCE
    if wrong.any():
        s, a = np.argwhere(wrong)[0]
        raise UsageError(
            f"{name}: P[{s}, {a}] sums to {sums[s, a]:.9g}; "
            "every row of probabilities must sum to 1."
        )


def _float_array(value: npt.ArrayLike, what: str, name: str) -> Floats:
    """Copy numbers into a float64 array; raise a UsageError if they are not finite numbers."""
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
    """Compute Q* by value iteration.

    Args:
        mdp: The MDP.
        tolerance: Bound of the error by the contraction, relative to max |Q*| if that exceeds 1.

    Returns:
        ``[S, A]``.
    """
    q: Floats = np.zeros_like(mdp.R)
    flat = mdp.P.reshape(-1, mdp.num_states)
    while True:
        new = mdp.R + (flat @ (mdp.discount * q.max(axis=1))).reshape(q.shape)
        bound = float(np.abs(new - q).max()) * mdp.gamma / (1.0 - mdp.gamma)
        q = new
        if bound <= tolerance * max(1.0, float(np.abs(q).max())):
            return q


# ------------------------------------------------------------------------------------- single MDPs


def two_state(seed: int, actions: int = 20, gamma: float = DEFAULT_GAMMA) -> TabularMDP:
    """Build the two-state MDP of the experiments in arXiv:2305.10697.

    The reward is 1 in state 1; the probability to stay is uniform in [0.4, 0.6] for each action.

    Args:
        seed: Seed of the transition probabilities.
        actions: Number of actions.
        gamma: Discount factor.

    Returns:
        The MDP.
    """
    stay = streams.generator(seed, streams.TWO_STATE).uniform(0.4, 0.6, (2, actions))
    P = np.empty((2, actions, 2))
    P[0, :, 0] = stay[0]
    P[0, :, 1] = 1.0 - stay[0]
    P[1, :, 1] = stay[1]
    P[1, :, 0] = 1.0 - stay[1]
    R = np.zeros((2, actions))
    R[1] = 1.0
    return make_mdp(P, R, gamma, name="two-state")


def garnet(
    seed: int, states: int, actions: int, branching: int, gamma: float = DEFAULT_GAMMA
) -> TabularMDP:
    """Build a random MDP (Garnet).

    Args:
        seed: Seed of the MDP.
        states: Number of states.
        actions: Number of actions.
        branching: Distinct successors per state-action pair, with flat Dirichlet probabilities.
        gamma: Discount factor.

    Returns:
        The MDP, with rewards uniform in [0, 1).

    Raises:
        UsageError: If `branching` is not between 1 and `states`.
    """
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
    """Return a perturbed copy: transitions mixed with random ones, rewards shifted.

    Args:
        mdp: The MDP.
        seed: Seed of the perturbation.
        strength: Share of the random transitions (on the same support), and scale of the uniform
            reward shifts in [-0.5, 0.5]; 0 to 1.
    """
    rng = streams.generator(seed, streams.VARIANTS)
    noise = rng.exponential(size=mdp.P.shape) * (mdp.P > 0)
    noise /= noise.sum(axis=2, keepdims=True)
    P = (1.0 - strength) * mdp.P + strength * noise
    R = mdp.R + strength * rng.uniform(-0.5, 0.5, mdp.R.shape)
    return make_mdp(P, R, mdp.gamma, mdp.start, mdp.discount == 0.0, name=f"{mdp.name}, perturbed")


def load_mdp(path: str | Path, gamma: float | None = None) -> TabularMDP:
    """Load a user's MDP.

    Args:
        path: An .npz file with P and R, and optionally gamma, start and terminal.
        gamma: Discount factor; the file's if None.

    Returns:
        The MDP.

    Raises:
        UsageError: If the file cannot be read or does not hold an MDP.
    """
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
            f"{path} holds an unknown array {min(unknown)}; "
            "known are P, R, gamma, start and terminal."
        )
    stored_gamma = arrays.pop("gamma", DEFAULT_GAMMA)
    if np.size(stored_gamma) != 1 or not np.issubdtype(np.asarray(stored_gamma).dtype, np.number):
        raise UsageError(f"{path}: gamma must be one number.")
    if gamma is None:
        gamma = float(stored_gamma)
    return make_mdp(**arrays, gamma=gamma, name=Path(path).name)


def gymnasium_mdp(name: str, gamma: float = DEFAULT_GAMMA, **options: Any) -> TabularMDP:
    """Build the MDP of a toy-text environment of Gymnasium from its transition table.

    Args:
        name: A key of `TOY_TEXT`.
        gamma: Discount factor.
        **options: Arguments of the environment.

    Returns:
        The MDP, restricted to the states that can be reached.

    Raises:
        UsageError: If there is no such environment or Gymnasium is not installed.
    """
    if name not in TOY_TEXT:
        raise UsageError(
            f"There is no toy-text environment '{name}'; known are {', '.join(TOY_TEXT)}."
        )
    try:
        import gymnasium
    except ImportError:
        raise UsageError(f"{name} needs Gymnasium: {install_hint('rl')}") from None
    env: Any = gymnasium.make(_newest_version(gymnasium, TOY_TEXT[name]), **options).unwrapped
    states = len(env.P)
    actions = len(env.P[0])
    P = np.zeros((states, actions, states))
    R = np.zeros((states, actions))
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
    reachable = _reachable_states(whole)
    return make_mdp(
        whole.P[reachable][:, :, reachable],
        whole.R[reachable],
        gamma,
        start[reachable],
        terminal[reachable],
        name,
    )


def _newest_version(gymnasium: Any, env_id: str) -> str:
    """Return the id with the highest registered version; Gymnasium removes old versions."""
    stem = env_id.rsplit("-v", 1)[0]
    versions = [
        spec.version
        for spec in gymnasium.registry.values()
        if spec.name == stem and spec.version is not None
    ]
    return f"{stem}-v{max(versions)}" if versions else env_id


def _reachable_states(mdp: TabularMDP) -> npt.NDArray[np.intp]:
    """Return the states that some sequence of actions reaches from the start distribution."""
    edges = np.asarray((mdp.P > 0).any(axis=1))
    reached = np.asarray(mdp.start > 0)
    while True:
        grown = reached | edges[reached].any(axis=0)
        if (grown == reached).all():
            return np.flatnonzero(reached)
        reached = grown


# -------------------------------------------------------------------------------- families of MDPs


def evenly_spaced(agents: int) -> Floats:
    """Return heterogeneity parameters u of agents, evenly spaced in (0, 1).

    Few agents are as diverse as many.

    Raises:
        UsageError: If there is no agent.
    """
    if agents < 1:
        raise UsageError(f"The number of agents is {agents}; at least one is needed.")
    return (np.arange(agents) + 0.5) / agents


def planted_weights(u: Floats, rank: int) -> Floats:
    """Return W ``[N, d]`` with rows (1, sqrt 2 cos pi u, sqrt 2 cos 2 pi u, ...) / sqrt d.

    For evenly spaced u and N >= d, W'W / N = I / d.
    """
    waves = np.cos(np.pi * np.outer(u, np.arange(rank)))
    waves[:, 1:] *= np.sqrt(2.0)
    return np.asarray(waves / np.sqrt(rank))


def planted_mdps(
    seed: int, u: Floats, states: int, actions: int, branching: int, rank: int, gamma: float
) -> list[TabularMDP]:
    """Build random MDPs whose optimal values are exactly Q^i = B w(u_i), with one B ``[S A, d]``.

    Transitions are interpolated from one random MDP at u = 0 to another at u = 1, with a small
    probability to jump to any state: without it, some draws have states that are rarely visited,
    and the theory assumes that all are. Rewards follow from the Bellman equation,
    r^i = Q^i - gamma P^i max_a Q^i.

    Args:
        seed: Seed of B and of the random MDPs.
        u: Heterogeneity parameters, ``[N]``.
        states: Number of states.
        actions: Number of actions.
        branching: Successors per state-action pair at both ends.
        rank: Dimension d of the subspace.
        gamma: Discount factor.

    Returns:
        One MDP per agent.

    Raises:
        UsageError: If `rank` is not between 1 and `states * actions`.
    """
    if not 1 <= rank <= states * actions:
        raise UsageError(
            f"planted rank is {rank}: "
            f"must lie between 1 and the {states * actions} state-action pairs"
        )
    P0 = garnet(2 * seed, states, actions, branching, gamma).P
    P1 = garnet(2 * seed + 1, states, actions, branching, gamma).P
    rng = streams.generator(seed, streams.PLANTED)
    draw = rng.standard_normal((states * actions, rank))
    basis = np.sqrt(states * actions) * np.linalg.qr(draw)[0]
    mdps = []
    for u_i, weights in zip(u, planted_weights(u, rank), strict=True):
        mixed = (1.0 - u_i) * P0 + u_i * P1
        P = (1.0 - JUMP_PROBABILITY) * mixed + JUMP_PROBABILITY / states
        q = (basis @ weights).reshape(states, actions)
        mdps.append(make_mdp(P, q - gamma * P @ q.max(axis=1), gamma, name="planted"))
    return mdps


def windy_cliff_mdps(u: Floats, wind: float, gamma: float, goal: float = 0.0) -> list[TabularMDP]:
    """Build CliffWalking where a gust moves the agent one cell down with probability wind * u.

    At u = 0 this is the table of Gymnasium's CliffWalking with rewards over 100: -0.01 per step,
    and -1 and back to the start for a fall. Cliff cells have no row: no agent ever stands there.

    Args:
        u: Heterogeneity parameters, ``[N]``.
        wind: Probability of a gust at u = 1.
        gamma: Discount factor.
        goal: Additional reward for reaching the goal.

    Returns:
        One MDP per agent.

    Raises:
        UsageError: If `wind` is not a probability.
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
    start_state = index[CLIFF_ROWS - 1, 0]
    goal_state = index[CLIFF_ROWS - 1, CLIFF_COLUMNS - 1]
    P = np.zeros((len(cells), len(CLIFF_MOVES), len(cells)))
    R = np.full((len(cells), len(CLIFF_MOVES)), -0.01)
    for s, (y, x) in enumerate(cells):
        for a, (dy, dx) in enumerate(CLIFF_MOVES):
            new_y = min(max(y + dy, 0), CLIFF_ROWS - 1)
            new_x = min(max(x + dx, 0), CLIFF_COLUMNS - 1)
            fell = (new_y, new_x) not in index
            successor = start_state if fell else index[new_y, new_x]
            P[s, a, successor] = 1.0
            if fell:
                R[s, a] = -1.0
            elif successor == goal_state:
                R[s, a] += goal
    start = np.eye(len(cells))[start_state]
    terminal = np.arange(len(cells)) == goal_state
    gust_P = P[:, [MOVE_DOWN]]
    gust_R = R[:, [MOVE_DOWN]]
    mdps = []
    for w in wind * u:
        P_w = (1 - w) * P + w * gust_P
        R_w = (1 - w) * R + w * gust_R
        mdps.append(make_mdp(P_w, R_w, gamma, start, terminal, name="windy-cliff"))
    return mdps


# ---------------------------------------------------------------------------------------- policies


def mdp_under_policy(mdp: TabularMDP, policy: Floats) -> TabularMDP:
    """Return the Markov chain under a policy ``[S, A]`` as an MDP with one action.

    Its optimal values are the policy's values.
    """
    P = np.einsum("sa,sat->st", policy, mdp.P)
    R = (policy * mdp.R).sum(axis=1)
    return make_mdp(
        P[:, None], R[:, None], mdp.gamma, mdp.start, mdp.discount == 0.0, name=mdp.name
    )


def epsilon_greedy_policy(mdp: TabularMDP, epsilon: float) -> Floats:
    """Return the epsilon-greedy version of the optimal policy, ``[S, A]``."""
    policy = np.full(mdp.R.shape, epsilon / mdp.num_actions)
    policy[np.arange(mdp.num_states), mdp.q_star.argmax(axis=1)] += 1.0 - epsilon
    return policy


def behaviour_policies(kind: str, mdp: TabularMDP, agents: int, epsilon: float) -> Floats:
    """Return the agents' behaviour policies, ``[K, S, A]``.

    Args:
        kind: One of `BEHAVIOURS`.
        mdp: The MDP.
        agents: Number of agents K.
        epsilon: Probability of a random action, for kind "epsilon" alone.

    Raises:
        UsageError: If there is no agent or no such kind.
    """
    if agents < 1:
        raise UsageError(f"The number of agents is {agents}; at least one is needed.")
    if kind == "regions":
        return region_policies(mdp, agents)
    randomness = {"fixed": 0.0, "epsilon": epsilon, "uniform": 1.0}
    if kind not in randomness:
        raise UsageError(
            f"There is no behaviour policy '{kind}'; known are {', '.join(BEHAVIOURS)}."
        )
    return preferred_action_policies(mdp, agents, randomness[kind])


def preferred_action_policies(mdp: TabularMDP, agents: int, epsilon: float) -> Floats:
    """Return policies in which agent k prefers action k mod A.

    Args:
        mdp: The MDP.
        agents: Number of agents K.
        epsilon: Probability of a uniformly random action instead.

    Returns:
        ``[K, S, A]``.

    Raises:
        UsageError: If epsilon is not a probability.
    """
    if not 0.0 <= epsilon <= 1.0:
        raise UsageError(f"epsilon is {epsilon}; a probability lies between 0 and 1.")
    pi = np.full((agents, mdp.num_states, mdp.num_actions), epsilon / mdp.num_actions)
    k = np.arange(agents)
    pi[k, :, k % mdp.num_actions] += 1.0 - epsilon
    return pi


def region_policies(mdp: TabularMDP, agents: int) -> Floats:
    """Return policies in which each agent explores its own block of states.

    Inside its block agent k plays every action; outside it takes the action that leads back. With
    two actions or more no agent covers all state-action pairs alone. Together they do, if each can
    reach its block.

    Returns:
        ``[K, S, A]``.
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
    """Return each state's action with the largest discounted probability of entering `goal`."""
    value = goal.astype(np.float64)
    while True:
        q = 0.99 * (mdp.P @ value)
        new = np.where(goal, 1.0, q.max(axis=1))
        if np.abs(new - value).max() < 1e-9:
            return np.asarray(q.argmax(axis=1))
        value = new
