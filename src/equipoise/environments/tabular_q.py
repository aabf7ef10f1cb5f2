"""Federated tabular Q-learning: local steps of agents and averaging of their tables.

Woo, Joshi, Chi, "The Blessing of Heterogeneity in Federated Q-Learning", ICML 2023
(arXiv:2305.10697). The state of K agents in `sims` independent simulations is a few arrays with a
leading agent axis. A round is `run_local_steps` followed by `synchronise`; trajectories continue
across rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.environments.tabular_mdp import Floats, TabularMDP
from equipoise.utils import rng
from equipoise.utils.errors import UsageError, install_hint

try:
    import numba

    import equipoise.environments.tabular_kernels as _kernels
except ImportError:
    raise UsageError(f"Federated Q-learning needs Numba: {install_hint('rl')}") from None

kernels: Any = _kernels  # Numba's functions have no signatures that a type checker could read
Ints = npt.NDArray[np.int64]
AVERAGING_RULES = ("equal", "importance", "targets")
# Random streams of an agent.
STREAM_NEXT = 0
STREAM_ACTION = 1
STREAM_START = 2


class TabularProblem:
    """MDPs and behaviour policies, prepared for the kernels."""

    def __init__(
        self, mdps: Sequence[TabularMDP], agents: int, policies: Floats | None = None
    ) -> None:
        """Prepare alias tables.

        Args:
            mdps: One MDP for all agents, or one per agent.
            agents: Number of agents K.
            policies: Behaviour policies pi[k, s, a]. None for FedSynQ, whose agents sample a
                generative model.

        Raises:
            UsageError: If the numbers of agents, MDPs or policies do not match.
        """
        if agents < 1:
            raise UsageError(f"The number of agents is {agents}; at least one is needed.")
        if len(mdps) not in (1, agents):
            raise UsageError(
                f"There are {len(mdps)} MDPs for {agents} agents; "
                "give one for all, or one per agent."
            )
        if len({mdp.R.shape for mdp in mdps}) > 1:
            raise UsageError(
                "The agents' MDPs differ in their numbers of states or actions; "
                "federated tables must match."
            )
        self.mdp = mdps[0]
        self.agents = agents
        self.env_of = np.arange(agents) if len(mdps) > 1 else np.zeros(agents, np.int64)
        self.transitions = kernels.alias_tables(np.stack([mdp.P for mdp in mdps]))
        self.reward = np.stack([mdp.R for mdp in mdps])
        self.discount = np.stack([mdp.discount for mdp in mdps])
        self.policies = policies
        if policies is not None:
            _check_policies(policies, (agents, self.mdp.num_states, self.mdp.num_actions))
            self.action = np.ascontiguousarray(policies.argmax(axis=2))
            self.policy_alias = kernels.alias_tables(policies)

    @property
    def is_deterministic(self) -> bool:
        """Whether every agent's action is a function of the state."""
        return self.policies is not None and self.policy_alias.threshold.shape[2] == 1

    @property
    def tables(self) -> tuple[Any, ...]:
        """Arguments of the kernels: alias thresholds and outcomes, rewards and discounts."""
        return (self.transitions.threshold, self.transitions.outcome, self.reward, self.discount)


def _check_policies(policies: Floats, shape: tuple[int, int, int]) -> None:
    """Raise a UsageError unless these are probabilities of the right shape."""
    if policies.shape != shape:
        raise UsageError(
            f"Behaviour policies have shape {policies.shape}; this problem wants {shape}."
        )
    if not (
        np.isfinite(policies).all()
        and (policies >= 0).all()
        and (np.abs(policies.sum(axis=2) - 1) < 1e-8).all()
    ):
        raise UsageError(
            "Behaviour policies must be probabilities that sum to 1 in every state of every agent."
        )


@dataclass
class QState:
    """State of a run between rounds; the arrays change in place."""

    q: Floats
    """``[K, sims, S, A]``: The agents' tables."""
    counts: Ints
    """``[K, sims, S, A]``: Visits since the agent's last synchronisation."""
    position: Ints
    """``[K, sims]``: Current states."""
    base: Floats
    """``[K, sims, S, A]``: The tables from which the agents' periods started."""
    table: Floats
    """``[sims, S, A]``: The server's table."""
    step: int
    """Local steps taken so far."""


def check_step_options(eta: float, tau: int) -> None:
    """Check the learning rate and the synchronisation period.

    Raises:
        UsageError: If eta is not in (0, 1) or tau is below 1.
    """
    if not 0.0 < eta < 1.0:
        raise UsageError(f"The learning rate eta is {eta}; it must lie strictly between 0 and 1.")
    if tau < 1:
        raise UsageError(f"The synchronisation period tau is {tau}; it must be at least one step.")


def initial_states(problem: TabularProblem, sims: int, seed: int) -> Ints:
    """Draw states from the start distribution, ``[K, sims]``.

    Args:
        problem: The agents' MDPs.
        sims: Number of independent simulations.
        seed: Seed of the run.
    """
    keys = kernels.stream_keys(seed, STREAM_START, problem.agents, sims)
    u = rng.uniform(keys, 1)[:, 0]
    states = np.searchsorted(np.cumsum(problem.mdp.start), u, side="right")
    # Rounding of the sum could lead beyond the last possible state.
    last = np.flatnonzero(problem.mdp.start)[-1]
    return np.asarray(np.minimum(states, last).astype(np.int64).reshape(problem.agents, sims))


def initial_q(problem: TabularProblem, sims: int, seed: int, random_start: bool) -> Floats:
    """Return initial tables ``[K, sims, S, A]``.

    They are zero, or uniform in (0, 1/(1 - gamma)] per agent, as in the paper's experiments.

    Args:
        problem: The agents' MDPs.
        sims: Number of independent simulations.
        seed: Seed of the run.
        random_start: Whether tables are random instead of zero.
    """
    shape = (problem.agents, sims, problem.mdp.num_states, problem.mdp.num_actions)
    if not random_start:
        return np.zeros(shape)
    keys = rng.keys(seed, np.arange(problem.agents), 1, rng.FIRST_TABLES)
    u = rng.uniform(keys, sims * shape[2] * shape[3])
    return np.asarray(random_q_entries(u, problem.mdp.gamma)).reshape(shape)


def random_q_entries(u: Any, gamma: float) -> Any:
    """Map uniform numbers in [0, 1) to entries of a random initial table."""
    return (1.0 - u) / (1.0 - gamma)


def init_state(problem: TabularProblem, sims: int, seed: int, random_start: bool = True) -> QState:
    """Return the state before the first round: the server holds the mean of the agents' tables.

    Args:
        problem: The agents' MDPs.
        sims: Number of independent simulations.
        seed: Seed of the run.
        random_start: Whether tables are random instead of zero.

    Raises:
        UsageError: If `sims` is below 1.
    """
    if sims < 1:
        raise UsageError(f"The number of simulations is {sims}; at least one is needed.")
    q = initial_q(problem, sims, seed, random_start)
    return QState(
        q=q,
        counts=np.zeros(q.shape, np.int64),
        position=initial_states(problem, sims, seed),
        base=q.copy(),
        table=q.mean(axis=0),
        step=0,
    )


def run_local_steps(
    problem: TabularProblem, state: QState, seed: int, eta: float, tau: int
) -> None:
    """Take tau local steps of every agent in every simulation, in place.

    Args:
        problem: The agents' MDPs.
        state: Tables, positions and counts; changed in place.
        seed: Seed of the run.
        eta: Learning rate.
        tau: Number of steps.
    """
    check_step_options(eta, tau)
    ids = np.arange(problem.agents)
    taken = np.full(problem.agents, state.step)
    advance(problem, ids, state.q, state.counts, state.position, taken, seed, eta, tau)
    state.step += tau


def advance(
    problem: TabularProblem,
    ids: Ints,
    q: Floats,
    counts: Ints,
    position: Ints,
    taken: Ints,
    seed: int,
    eta: float,
    tau: int,
) -> None:
    """Take tau steps of some agents; q, counts and position change in place.

    Args:
        problem: MDPs and policies. Without policies every step updates all pairs (FedSynQ).
        ids: ``[k]``, the agents.
        q: Tables, ``[k, sims, S, A]``.
        counts: Visit counts, ``[k, sims, S, A]``.
        position: States, ``[k, sims]``.
        taken: Steps that each agent has taken before, ``[k]``.
        seed: Seed of the random streams.
        eta: Learning rate.
        tau: Number of steps.
    """
    sims = q.shape[1]
    agent = np.repeat(ids, sims)
    before = np.repeat(taken, sims)
    flat = q.reshape(-1, *q.shape[2:])
    env = problem.env_of[agent]
    if problem.policies is None:
        key = _stream_heads(problem, ids, sims, seed, STREAM_NEXT, before * problem.mdp.R.size)
        kernels.sweep(flat, env, key, *problem.tables, tau, eta)
        return
    key = _stream_heads(problem, ids, sims, seed, STREAM_NEXT, before)
    walkers = (flat, counts.reshape(flat.shape), position.reshape(-1), agent, env, key)
    if problem.is_deterministic:
        kernels.walk_fixed(*walkers, problem.action, *problem.tables, tau, eta)
    else:
        choice_key = _stream_heads(problem, ids, sims, seed, STREAM_ACTION, before)
        kernels.walk_random(*walkers, choice_key, *problem.policy_alias, *problem.tables, tau, eta)


def sampled_backup(
    problem: TabularProblem,
    ids: Ints,
    tables: Sequence[Floats],
    taken: Ints,
    seed: int,
    samples: int,
) -> Floats:
    """Compute an empirical Bellman backup, or the difference of two.

    T(q)(s, a) is the mean of r + discount(s') max_a' q(s', a') over samples of s'.

    Args:
        problem: The MDPs.
        ids: ``[k]``, the agents.
        tables: One stack q ``[k, sims, S, A]``, or q and a reference.
        taken: Samples that each agent has taken before, ``[k]``.
        seed: Seed of the random streams.
        samples: Samples per state-action pair.

    Returns:
        T(q); with a reference T(q) - T(reference), with the same samples for both.
    """
    q, *reference = tables
    sims = q.shape[1]
    shape = (-1, *q.shape[2:])
    env = problem.env_of[np.repeat(ids, sims)]
    draws = np.repeat(taken, sims) * problem.mdp.R.size
    key = _stream_heads(problem, ids, sims, seed, STREAM_NEXT, draws)
    backup = q.reshape(shape).copy()
    other = reference[0].reshape(shape) if reference else np.zeros_like(backup)
    threshold, outcome, reward, discount = problem.tables
    kernels.backup_difference(backup, other, env, key, threshold, outcome, discount, samples)
    if not reference:
        backup = backup + reward[env]
    return np.asarray(backup).reshape(q.shape)


def _stream_heads(
    problem: TabularProblem, ids: Ints, sims: int, seed: int, stream: int, draws: Ints
) -> Any:
    """Return keys of the walkers' random numbers in a stream, after `draws` draws."""
    walker = np.repeat(ids, sims) * sims + np.tile(np.arange(sims), len(ids))
    keys = kernels.stream_keys(seed, stream, problem.agents, sims)[walker]
    return kernels.skip_draws(keys, draws)


def set_num_threads(count: int) -> None:
    """Set the kernels' threads, at most as many as Numba has."""
    available: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    numba.set_num_threads(max(1, min(count, available)))


def average_tables(rule: str, tables: Floats, counts: Ints, current: Floats, eta: float) -> Floats:
    """Average the agents' tables.

    Args:
        rule: One of `AVERAGING_RULES`.
        tables: Tables ``[K, ...]``, or with rule "targets" their `evidence`.
        counts: Visit counts, ``[K, ...]``.
        current: The server's table, ``[...]``.
        eta: Learning rate of the agents.

    Returns:
        The new table, ``[...]``.

    Raises:
        UsageError: If the rule is unknown.
    """
    num_agents = len(tables)
    shape = tables.shape[1:]
    if rule not in AVERAGING_RULES:
        raise UsageError(
            f"There is no averaging rule '{rule}'; known are {', '.join(AVERAGING_RULES)}."
        )
    flat = tables.reshape(num_agents, -1)
    if rule == "equal":
        return np.asarray(kernels.average_equal(flat)).reshape(shape)
    flat_counts = counts.reshape(num_agents, -1)
    powers = kernels.decay_powers(eta, int(counts.max()))
    if rule == "importance":
        return np.asarray(kernels.average_importance(flat, flat_counts, powers)).reshape(shape)
    average = kernels.average_targets(flat, flat_counts, current.reshape(-1), powers)
    return np.asarray(average).reshape(shape)


def evidence(q: Floats, counts: Ints, base: Floats, eta: float) -> Floats:
    """Return what an agent learned since it started from `base`: q - (1 - eta)^N base.

    Args:
        q: Tables of the agent after its steps.
        counts: Updates N of each state-action pair since `base`.
        base: Tables from which it started.
        eta: Learning rate.
    """
    powers = kernels.decay_powers(eta, int(counts.max()))
    return np.asarray(q - powers[np.minimum(counts, len(powers) - 1)] * base)


def synchronise(state: QState, rule: str, eta: float, present: Ints | None = None) -> None:
    """Average the tables of the agents `present` (all if None) and send them the result, in place.

    The other agents continue with their own tables.

    Args:
        state: Tables of agents and server; changed in place.
        rule: How tables are averaged.
        eta: Learning rate.
        present: The agents that take part; all if None.
    """
    if present is not None and len(present) == 0:
        return
    rows: Any = slice(None) if present is None else present
    q = state.q[rows]
    counts = state.counts[rows]
    sent = evidence(q, counts, state.base[rows], eta) if rule == "targets" else q
    state.table = average_tables(rule, sent, counts, state.table, eta)
    state.q[rows] = state.table
    state.base[rows] = state.table
    state.counts[rows] = 0


def normalised_errors(table: Floats, mdp: TabularMDP) -> Floats:
    """Return (1 - gamma) max |Q - Q*| of tables ``[..., S, A]``."""
    error: Floats = (1.0 - mdp.gamma) * np.abs(table - mdp.q_star).max(axis=(-2, -1))
    return error


def uplink_bytes(rule: str, mdp: TabularMDP) -> int:
    """Return the bytes an agent sends: its table, and visit counts if the rule needs them."""
    return mdp.R.nbytes if rule == "equal" else 2 * mdp.R.nbytes


def downlink_bytes(mdp: TabularMDP) -> int:
    """Return the bytes an agent receives: a table."""
    return mdp.R.nbytes
