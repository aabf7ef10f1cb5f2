"""Linear value functions with a shared representation: Q^i(s, a) = phi(s, a) . theta_i.

Every agent has its own MDP. With one action this is policy evaluation, V^i(s). The truth is known:
every agent's optimal values by value iteration, and the subspace that fits all of them best.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.environments.tabular_mdp import Floats, TabularMDP
from equipoise.environments.tabular_q import (
    STREAM_ACTION,
    STREAM_NEXT,
    Ints,
    TabularProblem,
    initial_states,
    kernels,
)
from equipoise.utils import rng
from equipoise.utils.errors import UsageError

# Imported after `tabular_q`, whose message says how to install Numba. Numba's functions have no
# signatures that a type checker could read.
linear_kernels: Any = import_module("equipoise.environments.linear_kernels")
MIN_SINGULAR_RATIO = 1e-9  # smaller singular values, relative to the largest, are rounding


class LinearProblem:
    """One MDP per agent, prepared for the kernels, with the true values to compare with."""

    def __init__(self, mdps: Sequence[TabularMDP], rank: int, epsilon: float = 1.0) -> None:
        """Prepare the kernels' tables.

        Args:
            mdps: The agents' MDPs.
            rank: Number of features d.
            epsilon: Probability of a random action.

        Raises:
            UsageError: If `rank` or `epsilon` is out of range.
        """
        num_rows = mdps[0].R.size
        if not 1 <= rank <= num_rows:
            raise UsageError(
                f"rank is {rank}: must lie between 1 and the {num_rows} rows of the representation"
            )
        if not 0.0 <= epsilon <= 1.0:
            raise UsageError(f"epsilon is {epsilon}; a probability lies between 0 and 1.")
        self.mdps = list(mdps)
        self.rank = rank
        self.epsilon = epsilon
        self.agents = len(mdps)
        self.tabular = TabularProblem(self.mdps, self.agents)

    @property
    def num_rows(self) -> int:
        """Rows of the representation: states x actions."""
        return int(self.mdps[0].R.size)

    @cached_property
    def true_values(self) -> Tensor:
        """The agents' optimal values, ``[N, S A]``."""
        return torch.from_numpy(np.stack([mdp.q_star.reshape(-1) for mdp in self.mdps]))

    @cached_property
    def best_subspace(self) -> Tensor:
        """Orthonormal basis of the subspace that holds most of all agents' values, ``[S A, <= d]``.

        It has fewer than d columns if the values have a lower rank.
        """
        u, s, _ = torch.linalg.svd(self.true_values.T, full_matrices=False)
        value_rank = int((s > MIN_SINGULAR_RATIO * s[0]).sum())
        basis: Tensor = u[:, : min(self.rank, value_rank)].contiguous()
        return basis

    def initial_states(self, seed: int) -> Ints:
        """Draw the agents' first states, ``[N]``."""
        return np.ascontiguousarray(initial_states(self.tabular, 1, seed)[:, 0])

    def rng_keys(self, seed: int, ids: Ints, taken: Ints) -> tuple[Any, Any]:
        """Return keys of the agents' transitions and actions after `taken` steps, ``[k]`` each.

        Args:
            seed: Seed of the run.
            ids: The agents `[k]`.
            taken: Steps that each has taken so far `[k]`.
        """

        def keys_of(stream: int) -> Any:
            keys = kernels.stream_keys(seed, stream, self.agents, 1)[ids]
            return kernels.skip_draws(keys, taken)

        return keys_of(STREAM_NEXT), keys_of(STREAM_ACTION)


def advance(
    problem: LinearProblem,
    ids: Ints,
    phi: Tensor,
    theta: Tensor,
    position: Tensor,
    sq_td_error: Tensor,
    keys: tuple[Any, Any],
    taken: Ints,
    steps: Tensor,
    rate: Tensor,
    moves: tuple[bool, bool, bool],
) -> None:
    """Take steps of some agents; phi, theta, position and sq_td_error change in place.

    Args:
        problem: The MDPs.
        ids: ``[k]``, the agents.
        phi: Representations, ``[k, S A, d]``.
        theta: Weights, ``[k, d]``.
        position: States, ``[k]``.
        sq_td_error: Running means of the squared TD errors, ``[k]``.
        keys: Keys of `LinearProblem.rng_keys`.
        taken: Steps that each agent has taken before, ``[k]``.
        steps: Steps of each agent, ``[k]``.
        rate: Learning rates, ``[k]``.
        moves: Whether phi learns, whether theta learns, and whether steps on phi are relative to
            the scale of values.
    """
    linear_kernels.walk_features(
        phi.numpy(),
        theta.numpy(),
        position.numpy(),
        sq_td_error.numpy(),
        problem.tabular.env_of[ids],
        *keys,
        *problem.tabular.tables,
        taken,
        steps.numpy(),
        rate.numpy(),
        problem.epsilon,
        moves,
    )


def initial_features(problem: LinearProblem, seed: int) -> Tensor:
    """Return a random representation with the scale of `orthonormal`, ``[S A, d]``."""
    generator = rng.generator(seed, rng.LINEAR_START)
    draw = generator.standard_normal((problem.num_rows, problem.rank))
    return orthonormal(torch.from_numpy(draw))


def run_federated(
    problem: LinearProblem,
    seed: int,
    rates: Floats,
    local_steps: int,
    marks: Ints,
    share_theta: bool = False,
    relative: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run pfedtd-rep or pfedq-rep (fedtd or fedq if theta is shared) as one compiled call.

    The simulation's rounds give the same result.

    Args:
        problem: The MDPs.
        seed: Seed of the run.
        rates: Learning rates alpha_t and beta_t, ``[T, 2]``.
        local_steps: Steps on theta per round, before one step on phi.
        marks: Rounds whose result is returned, ascending from 1.
        share_theta: Whether theta is averaged too.
        relative: Whether steps on phi are relative to the scale of values.

    Returns:
        At each mark the mean of the agents' representations ``[marks, S A, d]`` and their weights
        ``[marks, N, d]``, as trained in that round.
    """
    ids = np.arange(problem.agents)
    phis, thetas = linear_kernels.federate(
        initial_features(problem, seed).numpy().copy(),
        np.zeros((problem.agents, problem.rank)),
        problem.initial_states(seed),
        *problem.rng_keys(seed, ids, np.zeros_like(ids)),
        *problem.tabular.tables,
        problem.epsilon,
        rates,
        local_steps,
        share_theta,
        relative,
        marks,
    )
    return torch.from_numpy(phis), torch.from_numpy(thetas)


def orthonormal(phi: Tensor) -> Tensor:
    """Return sqrt(S/d) Q of the thin QR decomposition with a positive diagonal of R.

    The span is the same, columns have one size, and rows have size 1 on average.
    """
    q, r = torch.linalg.qr(phi)
    sign = torch.where(torch.diagonal(r, dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(phi.dtype)
    scale: float = (phi.shape[-2] / phi.shape[-1]) ** 0.5
    basis: Tensor = scale * q * sign.unsqueeze(-2)
    return basis


def fit_theta(phi: Tensor, values: Tensor) -> Tensor:
    """Solve phi theta = values by least squares, for a phi of `orthonormal`: phi^+ = (d/S) phi^T.

    Args:
        phi: ``[..., S, d]``.
        values: ``[..., S]``.

    Returns:
        ``[..., d]``.
    """
    projection = torch.einsum("...sd,...s->...d", phi, values)
    theta: Tensor = (phi.shape[-1] / phi.shape[-2]) * projection
    return theta


def subspace_distance(phi: Tensor, span: Tensor) -> Tensor:
    """Return the sine of the largest principal angle between phi's columns and `span`.

    Args:
        phi: ``[..., S, d]``.
        span: Orthonormal basis, ``[S, r]``.

    Returns:
        ``[...]``; NaN if phi is not finite.
    """
    finite = torch.isfinite(phi).all(dim=-1).all(dim=-1)
    q, _ = torch.linalg.qr(torch.where(finite[..., None, None], phi, 0.0))
    residual = span - q @ (q.mT @ span)
    return torch.where(finite, torch.linalg.matrix_norm(residual, ord=2), torch.nan)


def value_error(values: Tensor, truth: Tensor, visits: Tensor | None = None) -> Tensor:
    """Return |V - V*| / |V*| over the last axis; inf if a value is NaN.

    Args:
        values: V.
        truth: V*.
        visits: Weights of the squares; equal if None.
    """
    weights = torch.ones_like(truth) if visits is None else visits.sqrt()
    error = torch.linalg.vector_norm(weights * (values - truth), dim=-1)
    size = torch.linalg.vector_norm(weights * truth, dim=-1)
    return torch.nan_to_num(error / size, nan=torch.inf)


def greedy_regret(mdp_stack: dict[str, Tensor], values: Tensor) -> Tensor:
    """Return how much of the optimal return greedy policies lose from the start; exact.

    Args:
        mdp_stack: P, R, discount, start and best (optimal state values) of K MDPs, stacked.
        values: Q-values, ``[K, S, A]``.

    Returns:
        ``[K]``; inf if a value is NaN, because such values have no greedy policy.
    """
    action = values.argmax(-1)
    P = mdp_stack["P"]
    chain = torch.take_along_dim(P, action[..., None, None], 2).squeeze(2)
    reward = torch.take_along_dim(mdp_stack["R"], action[..., None], 2).squeeze(2)
    identity = torch.eye(P.shape[1], dtype=P.dtype)
    greedy_values = torch.linalg.solve(identity - chain * mdp_stack["discount"][:, None, :], reward)
    regret = (mdp_stack["start"] * (mdp_stack["best"] - greedy_values)).sum(-1)
    return torch.where(values.isnan().any(-1).any(-1), torch.inf, regret)
