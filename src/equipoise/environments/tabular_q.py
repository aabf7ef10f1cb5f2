"""Federated tabular Q-learning: a problem, a state, a local period, a synchronisation.

The state of K agents in `sims` independent simulations is a handful of arrays with the agents' axis in front. A round
is `local_period` followed by `synchronise`; trajectories run on across rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.environments.tabular_mdp import Floats, TabularMDP
from equipoise.utils import rng
from equipoise.utils.errors import UsageError

try:
    import numba

    import equipoise.environments.tabular_kernels as _qaverage
    import equipoise.environments.tabular_kernels as _qkernel
except ImportError:
    raise UsageError(
        "Federated Q-learning needs Numba; install it with: pip install 'equipoise[rl]'."
    ) from None

kernels: Any = _qkernel  # Numba's dispatchers carry no signatures that a type checker could read
qaverage: Any = _qaverage
Ints = npt.NDArray[np.int64]
AVERAGING_RULES = ("equal", "importance", "targets")
STREAM_NEXT, STREAM_ACTION, STREAM_START = range(3)


class TabularProblem:
    """MDPs and behaviour policies, prepared for the kernels: alias tables, or plain actions where nobody chooses.

    `mdps` holds one MDP for everybody, or one per agent; `policies` is pi[k, s, a], or None for FedSynQ, whose agents
    sample a generative model.
    """

    def __init__(
        self, mdps: Sequence[TabularMDP], agents: int, policies: Floats | None = None
    ) -> None:
        if agents < 1:
            raise UsageError(f"The number of agents is {agents}; at least one is needed.")
        if len(mdps) not in (1, agents):
            raise UsageError(
                f"There are {len(mdps)} MDPs for {agents} agents; give one for all, or one per agent."
            )
        if len({mdp.R.shape for mdp in mdps}) > 1:
            raise UsageError(
                "The agents' MDPs differ in their numbers of states or actions; federated tables must match."
            )
        self.mdp, self.agents = mdps[0], agents
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
        return (self.transitions.threshold, self.transitions.outcome, self.reward, self.discount)


def _check_policies(policies: Floats, shape: tuple[int, int, int]) -> None:
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
    """Everything that a run carries from one round to the next; the arrays change in place."""

    q: Floats
    """[K, sims, S, A] the agents' own tables"""
    counts: Ints
    """[K, sims, S, A] visits since the agent last synchronised"""
    position: Ints
    """[K, sims] where each trajectory stands"""
    base: Floats
    """[K, sims, S, A] the table from which the agent's period started"""
    table: Floats
    """[sims, S, A] the server's table"""
    step: int
    """local steps taken so far"""


def check_step_options(eta: float, tau: int) -> None:
    if not 0.0 < eta < 1.0:
        raise UsageError(f"The learning rate eta is {eta}; it must lie strictly between 0 and 1.")
    if tau < 1:
        raise UsageError(f"The synchronisation period tau is {tau}; it must be at least one step.")


def initial_states(problem: TabularProblem, sims: int, seed: int) -> Ints:
    """[K, sims] states drawn from the start distribution."""
    u = rng.uniform(kernels.stream_keys(seed, STREAM_START, problem.agents, sims), 1)[:, 0]
    drawn = np.searchsorted(np.cumsum(problem.mdp.start), u, side="right")
    inside = np.minimum(drawn, np.flatnonzero(problem.mdp.start)[-1]).astype(np.int64)
    return np.asarray(inside.reshape(problem.agents, sims))


def initial_q(problem: TabularProblem, sims: int, seed: int, random_start: bool) -> Floats:
    """[K, sims, S, A]: zero, or uniform in (0, 1/(1 - gamma)] for each agent on its own, as the paper's curves need."""
    shape = (problem.agents, sims, problem.mdp.num_states, problem.mdp.num_actions)
    if not random_start:
        return np.zeros(shape)
    u = rng.uniform(
        rng.keys(seed, np.arange(problem.agents), 1, rng.FIRST_TABLES), sims * shape[2] * shape[3]
    )
    return np.asarray(random_q_entries(u, problem.mdp.gamma)).reshape(shape)


def random_q_entries(u: Any, gamma: float) -> Any:
    """Numbers in [0, 1) as entries of a random first table."""
    return (1.0 - u) / (1.0 - gamma)


def init_state(problem: TabularProblem, sims: int, seed: int, random_start: bool = True) -> QState:
    """Before the first round the server holds the plain mean of the agents' tables."""
    if sims < 1:
        raise UsageError(f"The number of simulations is {sims}; at least one is needed.")
    q = initial_q(problem, sims, seed, random_start)
    counts = np.zeros(q.shape, np.int64)
    return QState(q, counts, initial_states(problem, sims, seed), q.copy(), q.mean(axis=0), 0)


def run_local_steps(
    problem: TabularProblem, state: QState, seed: int, eta: float, tau: int
) -> None:
    """tau local steps of every agent in every simulation, in place (FedSynQ where the problem has no policies)."""
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
    """tau further steps of the agents `ids` after `taken` ones each; their stacks [len(ids), sims, ...] change."""
    sims = q.shape[1]
    agent, before = np.repeat(ids, sims), np.repeat(taken, sims)
    flat, env = q.reshape(-1, *q.shape[2:]), problem.env_of[agent]
    if problem.policies is None:
        key = _keys(problem, ids, sims, seed, STREAM_NEXT, before * problem.mdp.R.size)
        kernels.sweep(flat, env, key, *problem.tables, tau, eta)
        return
    key = _keys(problem, ids, sims, seed, STREAM_NEXT, before)
    walkers = (flat, counts.reshape(flat.shape), position.reshape(-1), agent, env, key)
    if problem.is_deterministic:
        kernels.walk_fixed(*walkers, problem.action, *problem.tables, tau, eta)
    else:
        choice_key = _keys(problem, ids, sims, seed, STREAM_ACTION, before)
        kernels.walk_random(*walkers, choice_key, *problem.policy_alias, *problem.tables, tau, eta)


def sampled_backup(
    problem: TabularProblem,
    ids: Ints,
    tables: Sequence[Floats],
    taken: Ints,
    seed: int,
    samples: int,
) -> Floats:
    """T(q) of one stack [len(ids), sims, S, A]; T(q) - T(reference) of two, with the same samples for both.

    T(q)(s, a) is the mean of r + discount(s') max_a' q(s', a') over so many samples of every state-action pair.
    """
    q, *reference = tables
    sims, shape = q.shape[1], (-1, *q.shape[2:])
    env = problem.env_of[np.repeat(ids, sims)]
    key = _keys(problem, ids, sims, seed, STREAM_NEXT, np.repeat(taken, sims) * problem.mdp.R.size)
    found = q.reshape(shape).copy()
    other = reference[0].reshape(shape) if reference else np.zeros_like(found)
    threshold, outcome, reward, discount = problem.tables
    kernels.contrast(found, other, env, key, threshold, outcome, discount, samples)
    return np.asarray(found if reference else found + reward[env]).reshape(q.shape)


def _keys(
    problem: TabularProblem, ids: Ints, sims: int, seed: int, stream: int, draws: Ints
) -> Any:
    """Heads of the walkers' random numbers in a stream, after so many draws."""
    walker = np.repeat(ids, sims) * sims + np.tile(np.arange(sims), len(ids))
    return kernels.skip_draws(
        kernels.stream_keys(seed, stream, problem.agents, sims)[walker], draws
    )


def set_num_threads(count: int) -> None:
    """Threads of the kernels, as far as the machine has cores."""
    most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    numba.set_num_threads(max(1, min(count, most)))


def average_tables(rule: str, tables: Floats, counts: Ints, current: Floats, eta: float) -> Floats:
    """One table [...] of the stacks [K, ...] that came up: the agents' tables, or (rule "targets") their evidence."""
    K, shape = len(tables), tables.shape[1:]
    if rule not in AVERAGING_RULES:
        raise UsageError(
            f"There is no averaging rule '{rule}'; known are {', '.join(AVERAGING_RULES)}."
        )
    if rule == "equal":
        return np.asarray(qaverage.average_equal(tables.reshape(K, -1))).reshape(shape)
    powers = qaverage.decay_powers(eta, int(counts.max()))
    stacks = (tables.reshape(K, -1), counts.reshape(K, -1))
    if rule == "importance":
        return np.asarray(qaverage.average_importance(*stacks, powers)).reshape(shape)
    return np.asarray(qaverage.average_targets(*stacks, current.reshape(-1), powers)).reshape(shape)


def evidence(q: Floats, counts: Ints, base: Floats, eta: float) -> Floats:
    """What an agent learned itself since it started from `base`: q - (1 - eta)^N base."""
    powers = qaverage.decay_powers(eta, int(counts.max()))
    return np.asarray(q - powers[np.minimum(counts, len(powers) - 1)] * base)


def synchronise(state: QState, rule: str, eta: float, present: Ints | None = None) -> None:
    """The agents `present` (all, unless given) send and receive, in place; the others walk on with what they hold."""
    who: Any = slice(None) if present is None else present
    if present is not None and len(present) == 0:
        return
    q, counts = state.q[who], state.counts[who]
    sent = evidence(q, counts, state.base[who], eta) if rule == "targets" else q
    state.table = average_tables(rule, sent, counts, state.table, eta)
    state.q[who] = state.table
    state.base[who] = state.table
    state.counts[who] = 0


def normalised_errors(table: Floats, mdp: TabularMDP) -> Floats:
    """Normalised error (1 - gamma) max |Q - Q*| of tables [..., S, A]."""
    gap: Floats = (1.0 - mdp.gamma) * np.abs(table - mdp.q_star).max(axis=(-2, -1))
    return gap


def uplink_bytes(rule: str, mdp: TabularMDP) -> int:
    """Bytes that one agent sends in one synchronisation: its table, and its visit counts where the rule needs them."""
    return mdp.R.nbytes if rule == "equal" else 2 * mdp.R.nbytes


def downlink_bytes(mdp: TabularMDP) -> int:
    return mdp.R.nbytes
