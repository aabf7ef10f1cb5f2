"""Validation of what clients report, and bounds on the influence of one client.

A method declares a range per value that is reported beside the models. A client that reports a
value outside of it is left out. The second half of the file bounds how far the accepted changes may
move the model.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.core.messages import ClientUpdate, LocalHParams
from equipoise.utils.pytree import Params, State, map_leaves

Floats = NDArray[np.float64]

ROUNDING_SLACK = 1e-6  # tolerance of comparisons
RATE_ROUNDING = 1e-5  # relative tolerance of learning rates, which may travel in single precision


@dataclass(frozen=True)
class ValueRange:
    """An interval. For vectors, one bound for all entries or one per entry."""

    low: float | tuple[float, ...]
    high: float | tuple[float, ...]

    def first_violation(self, values: Tensor) -> Tensor:
        """Find the first value outside of the range, per client.

        Args:
            values: Reported values `[K, ...]`.

        Returns:
            The first such value `[K]` (infinity for NaN), or NaN where all values are valid.
        """
        values = values.double()
        low = torch.tensor(self.low, dtype=torch.float64)
        high = torch.tensor(self.high, dtype=torch.float64)
        # Negated, so that NaN is a violation too.
        wrong = ~((values >= low - ROUNDING_SLACK) & (values <= high + ROUNDING_SLACK))
        rows = values.reshape(len(values), -1)
        wrong = wrong.reshape(len(values), -1)
        if not rows.shape[1]:
            return rows.new_full((len(rows),), torch.nan)
        first = rows.gather(1, wrong.int().argmax(1, keepdim=True)).squeeze(1)
        return torch.where(wrong.any(1), first.nan_to_num(nan=torch.inf), torch.nan)

    def __str__(self) -> str:
        """Return the range as `[low, high]`."""
        return f"[{self.low}, {self.high}]"


FRACTION = ValueRange(0.0, 1.0)
"""Accuracies, errors, yes or no."""
MAX_LOSS = 1e6
LOSS = ValueRange(0.0, MAX_LOSS)
"""A mean loss over a client's rows. Larger values mean that training has diverged."""
COUNT = ValueRange(0.0, 1e12)
"""Numbers of visits or examples."""
CHECKED_BY_METHOD = ValueRange(-math.inf, math.inf)
"""For large values that `Method.check_updates` checks in one pass."""
DEFAULT_RANGE = ValueRange(-1e6, 1e6)
"""For values whose range a method has not declared."""

MAX_SIZE_RATIO = 10
"""A client counts with at most this many times the median number of examples."""
TRIM_FRACTION = 0.1  # largest values that robust statistics of a cohort ignore
MIN_COHORT = 5  # smaller cohorts have no outliers
MAX_MAD_RATIO = 5.0  # winsorize beyond this many times the trimmed maximal deviation


def trimmed_max(values: Tensor | Floats) -> float:
    """Return the largest value `[K]` after the largest 10 % (at least one) are removed."""
    array = values.numpy() if isinstance(values, Tensor) else values
    return float(np.sort(array)[_trimmed_index(len(array))])


def winsorize(values: Tensor) -> Tensor:
    """Pull outliers towards the median.

    Values inside the declared range can still be far from what honest clients report. Deviations
    from the median are limited to `MAX_MAD_RATIO` times the trimmed maximal deviation.

    Args:
        values: Reported values `[K, ...]`.

    Returns:
        Values of the same shape.
    """
    if len(values) < MIN_COHORT:
        return values
    median = values.median(0).values
    deviations = (values - median).abs().sort(0).values
    limit = MAX_MAD_RATIO * deviations[_trimmed_index(len(values))]
    return torch.minimum(torch.maximum(values, median - limit), median + limit)


def _trimmed_index(count: int) -> int:
    """Return the index of the trimmed maximum among `count` sorted values."""
    return count - 1 - max(1, int(TRIM_FRACTION * count))


def validate_reports(ranges: Mapping[str, ValueRange], updates: ClientUpdate) -> dict[int, str]:
    """Find clients that report a value outside of its range.

    Args:
        ranges: Range by name; a name stands for everything below it in `extra` or `metrics`.
        updates: Uploads of K clients.

    Returns:
        Row of each such client in the stack, with a sentence about the first such value.
    """
    violations: dict[int, str] = {}
    for name, value in (*_named_leaves(updates.metrics), *_named_leaves(updates.extra)):
        allowed = ranges.get(name, ranges.get(name.split("/")[0], DEFAULT_RANGE))
        if allowed is CHECKED_BY_METHOD:
            continue
        wrong = allowed.first_violation(value)
        for row in torch.nonzero(~wrong.isnan()).flatten().tolist():
            reason = f"its {name} is {float(wrong[row]):.6g}: must lie in {allowed}"
            violations.setdefault(row, reason)
    return violations


def believed_sizes(reported: Mapping[int, int]) -> dict[int, int]:
    """Limit reported numbers of examples, so that no client can claim all the weight of a mean.

    Args:
        reported: Number of examples by client; a negative one counts as 0.

    Returns:
        Numbers of at most `MAX_SIZE_RATIO` times the median; from `MIN_CROWD` clients on also of at
        most `largest_plausible`.
    """
    if not reported:
        return {}
    limit = math.ceil(MAX_SIZE_RATIO * statistics.median(reported.values()))
    positive = np.array([size for size in reported.values() if size > 0], dtype=np.float64)
    if len(reported) >= MIN_CROWD and len(positive) >= MIN_COHORT:
        limit = min(limit, math.ceil(largest_plausible(positive)))
    return {client: max(0, min(size, limit)) for client, size in reported.items()}


def hparam_violations(
    used: LocalHParams, lowest: LocalHParams, highest: LocalHParams
) -> dict[int, str]:
    """Find clients that report epochs or a learning rate that they may not have used.

    Args:
        used: What K clients report.
        lowest: The least that each may have used.
        highest: The most that each may have used.

    Returns:
        Row of each such client, with a sentence about it.
    """
    rate = used.lr.double().numpy()
    low = lowest.lr.double().numpy()
    high = highest.lr.double().numpy()
    epochs = used.epochs.numpy()
    allowed_rate = (rate >= low * (1 - RATE_ROUNDING)) & (rate <= high * (1 + RATE_ROUNDING))
    allowed_epochs = (epochs >= lowest.epochs.numpy()) & (epochs <= highest.epochs.numpy())
    violations: dict[int, str] = {}
    # Negated, so that NaN is a violation too.
    for row in np.flatnonzero(~(allowed_rate & allowed_epochs)).tolist():
        if not allowed_rate[row]:
            allowed = f"[{low[row]:.6g}, {high[row]:.6g}]"
            violations[row] = f"its learning rate is {rate[row]:.6g}: must lie in {allowed}"
        else:
            allowed = f"[{int(lowest.epochs[row])}, {int(highest.epochs[row])}]"
            violations[row] = f"its epochs are {epochs[row]}: must lie in {allowed}"
    return violations


def _named_leaves(tree: State, prefix: str = "") -> list[tuple[str, Tensor]]:
    """List the tensors of a tree with their paths, such as `agent/loss`."""
    leaves: list[tuple[str, Tensor]] = []
    for name, value in tree.items():
        if isinstance(value, dict):
            leaves += _named_leaves(value, f"{prefix}{name}/")
        else:
            leaves.append((f"{prefix}{name}", value))
    return leaves


# --- influence of one client --------------------------------------------------------------------
# Vectors of one number per client are computed in NumPy, whose calls on short vectors cost a third
# of torch's: these functions run in every round.

MIN_CROWD = 20
"""Replies from which on the tighter bound on influence holds."""
TAIL_EXPONENT = 1.5
"""How far the bound on weights lies beyond their trimmed maximum, where weights are spread. The
trimmed maximum is the 90 % quantile: 1.28 standard deviations of the logarithm above the median. If
weights are log-normal, one client in 1,500 is beyond 1.28 (1 + 1.5) = 3.2 standard deviations."""


class InfluenceBounds(NamedTuple):
    """How large a client's change may be, relative to the trimmed maximum of the cohort.

    Attributes:
        norm_ratio: Bound on the norm, before a method or a rule sees the change.
        influence_ratio: Bound on the aggregation weight, and on the norm times the weight.
        crowd_ratio: Bound on the aggregation weight and on the norm in cohorts of at least
            `MIN_CROWD` replies, whose trimmed maximum is a reliable measure, see `crowd_factors`.
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
        sizes: Norms or influences `[K]`, not negative.
        max_ratio: The largest allowed ratio to the trimmed maximum.

    Returns:
        Factors `[K]` in (0, 1], exactly 1 within the bound; all 1 in cohorts that are too small.
    """
    values = sizes.numpy()
    positive = values[values > 0]
    if max_ratio == torch.inf or len(positive) < MIN_COHORT:
        return torch.ones_like(sizes)
    return torch.from_numpy(_factors_to(max_ratio * trimmed_max(positive), values))


def _factors_to(bounds: Floats | float, sizes: Floats) -> Floats:
    """Return `bound / size` where a size `[K]` is beyond its bound, else 1."""
    factors = np.ones_like(sizes)
    np.divide(bounds, sizes, out=factors, where=sizes > bounds)
    return factors


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
        max_ratio: The largest allowed ratio to the trimmed maximum of the cohort.

    Returns:
        Factors `[K]` in (0, 1].
    """
    largest = largest_weights(weights).double().abs()
    if len(largest) >= MIN_CROWD:
        return crowd_factors(largest, norms, max_ratio)
    by_weight = shrink_factors(largest, max_ratio)
    return by_weight * shrink_factors(largest * by_weight * norms, max_ratio)


def crowd_factors(weights: Tensor, norms: Tensor, max_ratio: float) -> Tensor:
    """Return the factors that bound weights and norms in a cohort of many clients.

    Where all have as many rows, nobody counts more than the others. Where sizes are spread, the
    largest clients hold much of what is learned, see `largest_plausible`. A client with k times
    the rows takes k times the steps, and may move sqrt(k) times as far.

    Args:
        weights: Weights `[K]`, finite and not negative.
        norms: Norms of the changes `[K]`.
        max_ratio: The largest allowed ratio to the trimmed maximum.

    Returns:
        Factors `[K]` in (0, 1]; all 1 if too few clients count.
    """
    shares = weights.numpy()
    lengths = norms.numpy()
    counting = shares[shares > 0]
    moving = lengths[lengths > 0]
    if max_ratio == torch.inf or len(counting) < MIN_COHORT:
        return torch.ones_like(weights)
    median_weight, usual_weight = _median_and_trimmed_max(counting)
    factors = _factors_to(max_ratio * _tail_bound(median_weight, usual_weight), shares)
    if len(moving) < MIN_COHORT:
        return torch.from_numpy(factors)
    relative_weights = np.maximum(shares * factors / usual_weight, 1.0)
    norm_bounds = max_ratio * trimmed_max(moving) * np.sqrt(relative_weights)
    return torch.from_numpy(factors * _factors_to(norm_bounds, lengths))


def largest_plausible(values: Floats) -> float:
    """Return the largest weight or size that an honest client of a crowd may have.

    The tail is extrapolated from the median and the trimmed maximum, which a tenth of the clients
    cannot move. If all values are equal, it is that value.

    Args:
        values: Weights or sizes `[K]` above 0.
    """
    return _tail_bound(*_median_and_trimmed_max(values))


def _tail_bound(median: float, usual: float) -> float:
    """Return `largest_plausible` of values with this median and trimmed maximum."""
    with np.errstate(over="ignore"):  # a median that has nearly vanished bounds nobody
        return float(usual * (np.float64(usual) / median) ** TAIL_EXPONENT)


def _median_and_trimmed_max(values: Floats) -> tuple[float, float]:
    """Return the lower median and the trimmed maximum of values `[K]`, which are sorted once."""
    ordered = np.sort(values)
    return float(ordered[_middle(len(values))]), float(ordered[_trimmed_index(len(values))])


def _lower_median(values: Floats) -> float:
    """Return the median; the lower one of two in the middle, as torch does."""
    middle = _middle(len(values))
    return float(np.partition(values, middle)[middle])


def _middle(count: int) -> int:
    """Return the index of the lower median among `count` sorted values."""
    return (count - 1) // 2


MAX_OPPOSITION = 2.0
"""How far a change may point against the mean of the others, in lengths of that mean."""
MIN_MEAN_RATIO = 0.75
"""Length of a mean that has a direction, in lengths of the mean of independent changes.

If all clients are alike but for chance, they begin to point against the mean of the others by more
than `MAX_OPPOSITION` at 0.59.
"""
MIN_MEAN_NORM = 0.13
"""Length of a mean that has a direction, in median norms of the changes.

The mean of many independent changes is shorter than that, and honest clients that are at a slight
angle to it point against it by more than `MAX_OPPOSITION`. On Synthetic with 100 clients the first
ones did at 0.12 (one epoch a round, round 60).
"""

MAX_MEMORY_RATIO = 2.0
"""How far a client may have moved a memory of the server, in trimmed maxima of the cohort."""


def reference_weights(weights: Tensor, norms: Tensor) -> Tensor:
    """Return the weights with which changes enter the mean that others are compared with.

    One long change among few could turn the mean, so that no change counts with more than the
    median norm. From `MIN_CROWD` replies on the bound on influence has shortened them already.

    Args:
        weights: Aggregation weights `[K]`, not negative, not all 0.
        norms: Norms of the changes `[K]`, not all 0.

    Returns:
        Weights `[K]`; `weights` itself in a crowd.
    """
    if len(weights) >= MIN_CROWD:
        return weights
    median = float(norms[norms > 0].median())
    return weights * (median / norms.clamp(min=median)).to(weights.dtype)


def may_oppose(weights: Tensor, norms: Tensor, mean_norm: float) -> bool:
    """Return whether the mean is long enough for `opposition_factors` to limit anybody.

    Args:
        weights: Weights of the mean `[K]` with sum 1, not negative.
        norms: Norms of the changes `[K]`.
        mean_norm: The norm of the weighted mean.
    """
    shares = weights.numpy()
    lengths = norms.numpy()
    longest = (mean_norm + shares * lengths) / _rest(shares)
    return bool((longest >= _min_mean_norms(shares, lengths)).any())


def opposition_factors(weights: Tensor, norms: Tensor, dots: Tensor, mean_norm: float) -> Tensor:
    """Return the factors that bound how far each client pulls against the mean of the others.

    The mean of many different changes is much shorter than most of them, so that a change within
    the bounds on norms can undo those of many. Honest clients hardly ever point far against the
    mean of the others, as long as that has a direction: near convergence the mean of all vanishes,
    and each client points against the others. So nobody is limited by a mean that is shorter than
    that of independent changes would be.

    Args:
        weights: Weights of the mean `[K]` with sum 1, not negative.
        norms: Norms of the changes `[K]`.
        dots: Inner products `[K]` of the changes with their weighted mean.
        mean_norm: The norm of the weighted mean.

    Returns:
        Factors `[K]` in (0, 1], exactly 1 within the bound.
    """
    shares = weights.numpy()
    lengths = norms.numpy()
    products = dots.numpy()
    # The mean of the others is the mean of all less the client's own part, over 1 - weight.
    rest = _rest(shares)
    others_squared = mean_norm**2 - 2 * shares * products + (shares * lengths) ** 2
    others_norms = np.sqrt(np.maximum(others_squared, 0.0)) / rest
    opposing = (shares * lengths**2 - products) / rest
    bounds = MAX_OPPOSITION * others_norms**2
    has_direction = others_norms >= _min_mean_norms(shares, lengths)
    bounds[~has_direction | (bounds == 0)] = np.inf
    return torch.from_numpy(_factors_to(bounds, opposing))


def memory_factors(moved: Tensor, moves: Tensor) -> Tensor:
    """Return the factors that bound how far each client moves a memory of the server.

    A memory that adds up changes (SCAFFOLD's c) keeps a lie of every round. Honest changes of a
    client cancel in time. So nobody may have moved it, along its direction or against it, by more
    than `MAX_MEMORY_RATIO` times the trimmed maximum of the cohort. Where honest clients differ
    much, by their sizes say, that is more, see `largest_plausible`. A move back is never limited.

    Args:
        moved: How far `[K]` each client has moved the memory along its direction so far.
        moves: How far `[K]` each would move it in this round.

    Returns:
        Factors `[K]` in [0, 1], exactly 1 within the bound and for all in cohorts that are too
        small.
    """
    before = moved.numpy()
    steps = moves.numpy()
    after = before + steps
    sizes = np.abs(after)
    positive = sizes[sizes > 0]
    if len(positive) < MIN_COHORT:
        return torch.ones_like(moves)
    limit = max(MAX_MEMORY_RATIO * trimmed_max(positive), largest_plausible(positive))
    room = np.where(steps > 0, limit - before, limit + before)
    factors = np.ones_like(steps)
    np.divide(room, np.abs(steps), out=factors, where=(sizes > limit) & (steps * after > 0))
    return torch.from_numpy(factors.clip(0.0, 1.0))


def _rest(shares: Floats) -> Floats:
    """Return the weight `[K]` of all other clients together, above 0."""
    return np.maximum(1 - shares, ROUNDING_SLACK)


def _min_mean_norms(shares: Floats, norms: Floats) -> Floats:
    """Return how long the mean of the others `[K]` must be to have a direction.

    Independent changes of the median norm have a mean of that norm times the root of the sum of
    squared weights, for equal weights `1 / sqrt(K - 1)`.
    """
    squares = shares**2
    independent = np.sqrt(np.maximum(squares.sum() - squares, 0.0)) / _rest(shares)
    lengths: Floats = np.maximum(MIN_MEAN_RATIO * independent, MIN_MEAN_NORM)
    return lengths * _lower_median(norms)


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
