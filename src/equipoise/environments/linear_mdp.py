"""Values that share a representation: Q^i(s, a) = phi(s, a) . theta_i, one MDP an agent; one action means V^i(s).

The truth of such a federation is known: every agent's optimal values by value iteration, and the subspace that serves
all of them best.
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
    kernels,
    initial_states,
)
from equipoise.utils import rng
from equipoise.utils.errors import UsageError

# After `tabular`, which says what to do where Numba is missing; its dispatchers carry no signatures to check.
kernel: Any = import_module("equipoise.environments.linear_kernels")
MIN_SINGULAR_RATIO = 1e-9  # singular values below this share of the largest one are rounding


class LinearProblem:
    """One MDP an agent, prepared for the kernel, with the truth to measure against; `rank` is d."""

    def __init__(self, mdps: Sequence[TabularMDP], rank: int, epsilon: float = 1.0) -> None:
        entries = mdps[0].R.size
        if not 1 <= rank <= entries:
            raise UsageError(
                f"rank is {rank}: must lie between 1 and the {entries} rows of the representation"
            )
        if not 0.0 <= epsilon <= 1.0:
            raise UsageError(f"epsilon is {epsilon}; a probability lies between 0 and 1.")
        self.mdps, self.rank, self.epsilon, self.agents = list(mdps), rank, epsilon, len(mdps)
        self.tabular = TabularProblem(self.mdps, self.agents)

    @property
    def num_rows(self) -> int:
        """Rows of the representation: states x actions."""
        return int(self.mdps[0].R.size)

    @cached_property
    def true_values(self) -> Tensor:
        """[N, S * A] the agents' optimal values, with one action the values of the chain itself."""
        return torch.from_numpy(np.stack([mdp.q_star.reshape(-1) for mdp in self.mdps]))

    @cached_property
    def best_subspace(self) -> Tensor:
        """[S * A, <= d] orthonormal: the subspace that holds most of all agents' values (all, where they were planted).

        It has fewer than d columns where the values have a lower rank: two agents span two dimensions.
        """
        u, s, _ = torch.linalg.svd(self.true_values.T, full_matrices=False)
        span: Tensor = u[
            :, : min(self.rank, int((s > MIN_SINGULAR_RATIO * s[0]).sum()))
        ].contiguous()
        return span

    def initial_states(self, seed: int) -> Ints:
        """[N] where the agents begin."""
        return np.ascontiguousarray(initial_states(self.tabular, 1, seed)[:, 0])

    def rng_keys(self, seed: int, ids: Ints, taken: Ints) -> tuple[Any, Any]:
        """Heads of the agents' random numbers for transitions and for actions, after so many steps taken."""

        def heads(stream: int) -> Any:
            return kernels.skip_draws(kernels.stream_keys(seed, stream, self.agents, 1)[ids], taken)

        return heads(STREAM_NEXT), heads(STREAM_ACTION)


def advance(
    problem: LinearProblem,
    ids: Ints,
    phi: Tensor,
    theta: Tensor,
    position: Tensor,
    surprise: Tensor,
    keys: tuple[Any, Any],
    taken: Ints,
    steps: Tensor,
    rate: Tensor,
    moves: tuple[bool, bool, bool],
) -> None:
    """Steps of the agents `ids`, each so many at its rate; `moves`: on phi, on theta, relative to the scale of values.

    The stacks phi, theta, position and surprise (the mean of an agent's squared TD errors) change.
    """
    arrays = [value.numpy() for value in (phi, theta, position, surprise)]
    how = (taken, steps.numpy(), rate.numpy(), problem.epsilon, moves)
    kernel.walk_features(*arrays, problem.tabular.env_of[ids], *keys, *problem.tabular.tables, *how)


def initial_features(problem: LinearProblem, seed: int) -> Tensor:
    """The representation of the first round: random, of the size that rounds give it."""
    draw = rng.generator(seed, rng.LINEAR_START).standard_normal((problem.num_rows, problem.rank))
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
    """Whole runs of pfedtd-rep and pfedq-rep (fedtd and fedq if theta is shared) as one compiled call.

    `rates` [T, 2] are alpha_t and beta_t; the result is [marks, S * A, d] the mean of the agents' representations and
    [marks, N, d] their weights, as trained in the rounds `marks`; steps on phi are `relative` or as published. The
    contract's rounds give the same.
    """
    phi, theta = (
        initial_features(problem, seed).numpy().copy(),
        np.zeros((problem.agents, problem.rank)),
    )
    ids = np.arange(problem.agents)
    walk = (
        phi,
        theta,
        problem.initial_states(seed),
        *problem.rng_keys(seed, ids, np.zeros_like(ids)),
        *problem.tabular.tables,
    )
    phis, thetas = kernel.federate(
        *walk, problem.epsilon, rates, local_steps, share_theta, relative, marks
    )
    return torch.from_numpy(phis), torch.from_numpy(thetas)


def orthonormal(phi: Tensor) -> Tensor:
    """sqrt(S/d) Q of the thin QR, with R's diagonal positive: the same span, columns of one size, rows of size 1."""
    q, r = torch.linalg.qr(phi)
    sign = torch.where(torch.diagonal(r, dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(phi.dtype)
    scale: float = (phi.shape[-2] / phi.shape[-1]) ** 0.5
    basis: Tensor = scale * q * sign.unsqueeze(-2)
    return basis


def fit_theta(phi: Tensor, values: Tensor) -> Tensor:
    """theta of least squares, phi theta = values, for a phi of :func:`orthonormal`: phi^+ = (d/S) phi^T."""
    weights: Tensor = (phi.shape[-1] / phi.shape[-2]) * torch.einsum(
        "...sd,...s->...d", phi, values
    )
    return weights


def subspace_distance(phi: Tensor, span: Tensor) -> Tensor:
    """Sine of the largest principal angle: how much of a unit vector of `span` [S, r] the columns of phi can miss."""
    whole = torch.isfinite(phi).all(dim=-1).all(dim=-1)
    q, _ = torch.linalg.qr(torch.where(whole[..., None, None], phi, 0.0))
    missed = span - q @ (q.mT @ span)
    return torch.where(whole, torch.linalg.matrix_norm(missed, ord=2), torch.nan)


def value_error(values: Tensor, truth: Tensor, visits: Tensor | None = None) -> Tensor:
    """|V - V*| / |V*| over states (and actions), weighted by ``visits`` if given; infinite for values of NaN."""
    weights = torch.ones_like(truth) if visits is None else visits.sqrt()
    off, size = (
        torch.linalg.vector_norm(weights * part, dim=-1) for part in (values - truth, truth)
    )
    return torch.nan_to_num(off / size, nan=torch.inf)


def greedy_regret(mdp_stack: dict[str, Tensor], values: Tensor) -> Tensor:
    """What the greedy policies of values [K, S, A] lose of the optimal return from the start; exact.

    Values of NaN have no greedy policy: their loss is infinite.
    """
    best = values.argmax(-1)
    P, R, discount, start = (mdp_stack[name] for name in ("P", "R", "discount", "start"))
    chain = torch.take_along_dim(P, best[..., None, None], 2).squeeze(2)
    pay = torch.take_along_dim(R, best[..., None], 2).squeeze(2)
    own = torch.linalg.solve(
        torch.eye(P.shape[1], dtype=P.dtype) - chain * discount[:, None, :], pay
    )
    regret = (start * (mdp_stack["best"] - own)).sum(-1)
    return torch.where(values.isnan().any(-1).any(-1), torch.inf, regret)
