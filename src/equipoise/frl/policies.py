"""Behaviour policies of K agents: arrays pi[k, s, a] of probabilities."""

from __future__ import annotations

import numpy as np

from equipoise.core.errors import UsageError
from equipoise.frl.mdp import Floats, TabularMDP

POLICIES = ("fixed", "epsilon", "regions", "uniform")


def behaviour(kind: str, mdp: TabularMDP, agents: int, epsilon: float) -> Floats:
    """The policies of all agents, by name; `epsilon` serves the epsilon-random kind alone."""
    if agents < 1:
        raise UsageError(f"The number of agents is {agents}; at least one is needed.")
    if kind == "fixed":
        return preferred_action(mdp, agents, 0.0)
    if kind == "epsilon":
        return preferred_action(mdp, agents, epsilon)
    if kind == "uniform":
        return preferred_action(mdp, agents, 1.0)
    if kind == "regions":
        return regions(mdp, agents)
    raise UsageError(f"There is no behaviour policy '{kind}'; known are {', '.join(POLICIES)}.")


def preferred_action(mdp: TabularMDP, agents: int, epsilon: float) -> Floats:
    """Agent k plays action k mod A with probability 1 - epsilon, else any action uniformly (0 fixed, 1 uniform)."""
    if not 0.0 <= epsilon <= 1.0:
        raise UsageError(f"epsilon is {epsilon}; a probability lies between 0 and 1.")
    pi = np.full((agents, mdp.states, mdp.actions), epsilon / mdp.actions)
    k = np.arange(agents)
    pi[k, :, k % mdp.actions] += 1.0 - epsilon
    return pi


def regions(mdp: TabularMDP, agents: int) -> Floats:
    """Agent k plays every action in its own block of states, and outside takes the one action that leads back there.

    With two actions or more no agent covers all state-action pairs alone; together they do, if the MDP lets each agent
    reach its block.
    """
    blocks = min(agents, mdp.states)
    block_of = np.arange(mdp.states) * blocks // mdp.states
    pi = np.zeros((agents, mdp.states, mdp.actions))
    for block in range(blocks):
        inside = block_of == block
        pi[block::blocks, inside] = 1.0 / mdp.actions
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
