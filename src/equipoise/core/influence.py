"""Bounds on how far one client can move the global model.

A client moves the model by its aggregation weight times the norm of its change: its influence.
Both numbers can be driven up by a client, the weight by a false sample count and the norm by a
false model, so that their product is what must be bounded. Bounds are relative to the trimmed
maximum of the cohort: honest clients of one federation resemble each other. A client beyond a bound
counts less, and is not left out: an honest client with much data keeps most of its influence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.core.messages import ClientUpdate
from equipoise.core.report_validation import MIN_COHORT, trimmed_max
from equipoise.utils.pytree import Params, State, map_leaves

MIN_CROWD = 20
"""Replies from which on the tighter bound on influence holds."""
NOTABLE_FACTOR = 2 / 3
"""A client that counts less than this share of its weight is named in the log."""


class InfluenceBounds(NamedTuple):
    """How large a client's change may be, relative to the trimmed maximum of the cohort.

    Attributes:
        norm_ratio: Bound on the norm, before a method or a rule sees the change.
        influence_ratio: Bound on the aggregation weight, and on the norm times the weight.
        crowd_ratio: The same in cohorts of at least `MIN_CROWD` replies, whose trimmed maximum is
            a reliable measure.
        weighs_norms: Whether norms compare, so that influence is weight times norm; else it is the
            weight alone.
    """

    norm_ratio: float
    influence_ratio: float
    crowd_ratio: float
    weighs_norms: bool = True

    def influence_ratio_of(self, replies: int) -> float:
        """Return the bound on influence in a cohort with this many replies."""
        return self.crowd_ratio if replies >= MIN_CROWD else self.influence_ratio


UNBOUNDED = InfluenceBounds(torch.inf, torch.inf, torch.inf)
"""For cohorts whose changes are not seen one by one, or whose norms do not compare."""


def shrink_factors(sizes: Tensor, max_ratio: float) -> Tensor:
    """Return the factors that bring each size down to its bound.

    Clients that did not move or do not count say nothing about the others: the trimmed maximum is
    over positive sizes.

    Args:
        sizes: Norms or influences `[K]`, finite and not negative.
        max_ratio: The largest allowed ratio to the trimmed maximum.

    Returns:
        Factors `[K]` in (0, 1], exactly 1 within the bound; all 1 in cohorts that are too small.
    """
    factors = torch.ones_like(sizes)
    positive = sizes[sizes > 0]
    if max_ratio == torch.inf or len(positive) < MIN_COHORT:
        return factors
    bound = max_ratio * trimmed_max(positive)
    return torch.where(sizes > bound, bound / sizes, factors)


def largest_weights(weights: Tensor | Params) -> Tensor:
    """Return the largest weight `[K]` that each client has in any parameter.

    Args:
        weights: Weights `[K]`, or by parameter name `[K, ...]`.
    """
    if isinstance(weights, Tensor):
        return weights.flatten(1).amax(1) if weights.dim() > 1 else weights
    each = [largest_weights(value).double() for value in weights.values()]
    return torch.stack(each).amax(0)


def influence_factors(weights: Tensor | Params, norms: Tensor, max_ratio: float) -> Tensor:
    """Return the factors that bound each client's weight, and its weight times norm.

    Args:
        weights: Aggregation weights, `[K]` or by parameter name `[K, ...]`.
        norms: Norms of the changes `[K]`.
        max_ratio: The largest allowed ratio to the trimmed maximum, of weights and of influences.

    Returns:
        Factors `[K]` in (0, 1].
    """
    largest = largest_weights(weights).double().abs()
    by_weight = shrink_factors(largest, max_ratio)
    return by_weight * shrink_factors(largest * by_weight * norms, max_ratio)


def scale_weights(weights: Tensor | Params, factors: Tensor) -> Tensor | Params:
    """Lower the weights of some clients.

    What they lose goes to all clients in proportion, so that a false sample count or a long change
    cannot slow training down either.

    Args:
        weights: Aggregation weights, `[K]` or by parameter name `[K, ...]`.
        factors: Factors `[K]` in (0, 1].

    Returns:
        Weights with the same sums over clients; `weights` itself if all factors are 1.
    """
    if not bool((factors < 1).any()):
        return weights

    def lower(value: Tensor) -> Tensor:
        lowered = value * factors.to(value.dtype).view(-1, *[1] * (value.dim() - 1))
        total = lowered.sum(0)
        return torch.where(total > 0, lowered * (value.sum(0) / total), value)

    lowered: Tensor | Params = map_leaves(lower, weights)
    return lowered


def like_params(update: ClientUpdate) -> dict[str, Params]:
    """Return the parts of `extra` that are changes of a model, such as SCAFFOLD's of c_i."""
    return {
        name: tree
        for name, tree in update.extra.items()
        if isinstance(tree, dict) and tree.keys() == update.params.keys()
    }


def shrink_update(update: ClientUpdate, origin: Params, factors: Tensor) -> ClientUpdate:
    """Shrink the uploads of some clients.

    Args:
        update: Uploads `[K, ...]`.
        origin: The model that was sent.
        factors: Factors `[K]` in (0, 1].

    Returns:
        The uploads with shrunk models and shrunk parts of `extra` that have a model's shape; the
        rest as it is, and `update` itself if all factors are 1.
    """
    if not bool((factors < 1).any()):
        return update
    extra: State = dict(update.extra)
    for name, tree in like_params(update).items():
        zeros = {key: torch.zeros_like(value[0]) for key, value in tree.items()}
        extra[name] = shrink_changes(tree, zeros, factors)
    params = shrink_changes(update.params, origin, factors)
    return replace(update, params=params, extra=extra)


def shrink_changes(params: Params, origin: Params, factors: Tensor) -> Params:
    """Shrink the changes of some clients.

    Args:
        params: Models `[K, ...]`.
        origin: The model from which changes are measured.
        factors: Factors `[K]` in (0, 1].

    Returns:
        Models `origin + factor * (model - origin)`; those with a factor of 1 stay to the bit.
    """
    rows = torch.nonzero(factors < 1).flatten()
    if not len(rows):
        return params
    shrunk: Params = {}
    for name, value in params.items():
        if not value.is_floating_point():
            shrunk[name] = value
            continue
        factor = factors[rows].to(value.dtype).view(-1, *[1] * (value.dim() - 1))
        change = (value[rows] - origin[name]) * factor
        shrunk[name] = value.index_copy(0, rows, origin[name] + change)
    return shrunk
