"""Guards around decision 3: which replies may be used, and whether the new server is valid.

A result that is not finite is never adopted, and replies that cause a failure are left out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.core import ClientResult, ClientUpdate, Method, Server, ServerMessage
from equipoise.core.method import weighted_mean
from equipoise.core.report_validation import (
    MIN_COHORT,
    Floats,
    InfluenceBounds,
    influence_factors,
    largest_weights,
    like_params,
    may_oppose,
    opposition_factors,
    reference_weights,
    scale_weights,
    shrink_factors,
    shrink_update,
    trimmed_max,
    validate_reports,
)
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Params, State, index, leaves, named_leaves

if TYPE_CHECKING:
    from equipoise.simulation.executors import CohortResults

COMMON_START_BOUNDS = InfluenceBounds(norm_ratio=5.0, influence_ratio=3.0, crowd_ratio=1.0)
"""Where all clients start from one model."""
STATEFUL_BOUNDS = InfluenceBounds(norm_ratio=8.0, influence_ratio=5.0, crowd_ratio=1.0)
"""Where clients start from models of their own."""
OWN_RATE_BOUNDS = InfluenceBounds(norm_ratio=50.0, influence_ratio=10.0, crowd_ratio=1.0)
"""Where clients choose epochs and rate themselves: one may train a hundred times as much."""
AGENT_BOUNDS = InfluenceBounds(norm_ratio=5.0, influence_ratio=torch.inf, crowd_ratio=torch.inf)
"""For agents in environments: honest ones may differ by much more than models of data."""
CACHED_NUMBERS = 2**16  # of differences that are read again at once
MAX_ABS_PARAMETER = 1e10  # a model with larger parameters has diverged


class SumRequest(NamedTuple):
    """A method's sums over the replies of a cohort.

    Attributes:
        method: The method.
        global_params: The model that the clients were sent.
        accepted: Mask `[R]` of the replies that are summed.
        weights: Weights of the accepted replies.
        factors: By which their changes are shrunk; None if none is.
    """

    method: Method
    global_params: Params
    accepted: Tensor
    weights: Tensor | Params
    factors: Tensor | None = None


@dataclass
class UpdateDiagnostics:
    """What decides whether a reply may be used, computed where the replies are.

    Attributes:
        is_finite: Mask `[R]`: all numbers of update and client state are finite.
        norms: Norm `[R]` of each update.
        extra_norms: Norm `[R]` of what is uploaded beside it in the shape of a model, 0 without.
        memory_moves: How far `[R]` that would move what was sent under its name along itself;
            negative against it, 0 without.
        violations: Reason by row of a reply whose reported numbers are out of range.
    """

    is_finite: Tensor
    norms: Tensor
    extra_norms: Tensor
    memory_moves: Tensor
    violations: dict[int, str]

    @classmethod
    def compute(
        cls,
        method: Method,
        message: ServerMessage,
        ids: Tensor,
        reply: ClientResult,
        memory: dict[str, Any],
    ) -> UpdateDiagnostics:
        """Compute the diagnostics of a stack of replies.

        Args:
            method: The method, which declares the ranges of reported numbers.
            message: What the clients were sent.
            ids: The clients `[R]`.
            reply: The replies, stacked `[R, ...]`.
            memory: What the method's checks remember of earlier rounds.

        Returns:
            The diagnostics, `[R]`.
        """
        sent = message.params
        update = reply.update
        num_clients = len(ids)
        norms = update_norms(sent, update.params, num_clients)
        # A norm is finite only if all numbers of the update are, and the model that was sent was
        # checked when it was made: they need no second pass.
        checked = {value.data_ptr() for tree in (update.params, sent) for value in tree.values()}
        rest = rows_are_finite((update, reply.client_state), num_clients, checked)
        return cls(
            torch.isfinite(norms).logical_and_(rest),
            norms,
            extra_norms(update, num_clients),
            memory_moves(message, update, num_clients),
            {
                **method.check_updates(message, ids, update, memory),
                **validate_reports(method.report_ranges, update),
            },
        )

    @classmethod
    def concatenate(cls, parts: list[UpdateDiagnostics]) -> UpdateDiagnostics:
        """Join the diagnostics of several stacks, in their order."""
        firsts = accumulate((len(part.is_finite) for part in parts), initial=0)
        violations: dict[int, str] = {}
        for first, part in zip(firsts, parts, strict=False):
            violations |= {first + row: reason for row, reason in part.violations.items()}
        return cls(
            torch.cat([part.is_finite for part in parts]),
            torch.cat([part.norms for part in parts]),
            torch.cat([part.extra_norms for part in parts]),
            torch.cat([part.memory_moves for part in parts]),
            violations,
        )


@dataclass
class AggregationOutcome:
    """The result of decision 3.

    Attributes:
        server: The server after the round; as it was before if the round was skipped.
        accepted: Mask `[R]` of the replies that were used.
        blamed: Reason by row of a reply that made the aggregation fail.
        skipped: Why the model did not change; None if it did.
    """

    server: Server
    accepted: Tensor
    blamed: dict[int, str] = field(default_factory=dict)
    skipped: str | None = None


@dataclass(frozen=True)
class Aggregation:
    """Decision 3 of one round, which can be tried on any subset of the replies.

    Attributes:
        method: The method in this round.
        server: The server before the aggregation; it is never changed.
        ids: The clients that replied, `[R]`.
        results: Their replies.
        sent_params: The model that they were sent.
        chunks: Chunks of the cohort, by which updates are summed in a fixed order.
        diagnostics: Norms of the replies.
        bounds: How far one client may move the model.
    """

    method: Method
    server: Server
    ids: Tensor
    results: CohortResults
    sent_params: Params
    chunks: list[slice]
    diagnostics: UpdateDiagnostics
    bounds: InfluenceBounds

    def attempt(self, accepted: Tensor) -> tuple[Server | None, str | Exception]:
        """Aggregate some of the replies.

        Args:
            accepted: Mask `[R]` of the replies to use.

        Returns:
            The new server and an empty text; or None and the error, or the fault of the result.
        """
        after = copy.copy(self.server)
        after.logged = dict(self.server.logged)
        after.shrunk = {}
        after.uncommitted = set()
        after.influence_ratio = self.bounds.influence_ratio_of(int(accepted.sum()))
        try:
            self._apply_method(after, accepted)
        except UsageError:
            raise
        except Exception as error:
            return None, error
        if not _params_are_bounded(self.server.params, after.params):
            return None, "the aggregate is not finite, or has exploded"
        if not _state_is_finite(self.server.state, after.state):
            return None, "the server's state is not finite any more"
        return after, ""

    def _apply_method(self, after: Server, accepted: Tensor) -> None:
        """Call the method's hooks of decision 3 in their order, on bounded changes."""
        method = self.method
        replies = self._accepted_replies(accepted)
        if method.capabilities.aggregates_by_sum:
            after.sum_updates = replies.sum_updates
        log_shrunk(after, replies.ids, replies.factors)
        replies.weights, after.state = method.aggregation_weights(
            after, replies.ids, replies.updates
        )
        if not method.capabilities.bounds_influence:
            replies.limit(after, replies.influence_limits(after.influence_ratio))
            if replies.bounds_opposition():
                replies.limit(after, replies.opposition_limits())
            if bool(self.diagnostics.memory_moves.any()):
                moves = replies.memory_moves()
                by, after.state = method.memory_limits(after, replies.ids, moves)
                replies.limit(after, by)
        after.params, after.state = method.aggregate(
            after, replies.ids, replies.updates, replies.weights
        )
        after.state = method.learn(after, replies.ids, replies.updates)
        after.sum_updates = None

    def _accepted_replies(self, accepted: Tensor) -> AcceptedReplies:
        """Return the replies of a mask `[R]`, with norms bounded and no weights yet."""
        assert self.results.stack is not None
        ids = self.ids
        updates = self.results.stack.update
        norms = self.diagnostics.norms
        extra_norms = self.diagnostics.extra_norms
        by_sum = self.method.capabilities.aggregates_by_sum
        if by_sum:
            # Parameters stay where they were computed, perhaps in other processes: summed there.
            updates = ClientUpdate({}, metrics=updates.metrics)
        if not bool(accepted.all()):
            ids = ids[accepted]
            updates = index(updates, accepted)
            norms = norms[accepted]
            extra_norms = extra_norms[accepted]
        # Factors that bound the norms of what they upload.
        factors = shrink_factors(norms, self.bounds.norm_ratio)
        if bool(extra_norms.any()):
            by_extra = shrink_factors(extra_norms, self.bounds.influence_ratio)
            factors = torch.minimum(factors, by_extra)
        if not by_sum:
            updates = shrink_update(updates, self.sent_params, factors)
        return AcceptedReplies(self, accepted, ids, updates, norms, factors)


@dataclass
class AcceptedReplies:
    """The replies that are aggregated, and how much of each counts.

    Attributes:
        aggregation: The aggregation that they belong to.
        accepted: Mask `[R]` of them among all replies.
        ids: Their clients `[K]`.
        updates: Their updates, stacked; without parameters where the executor sums them.
        norms: Norms of their changes as uploaded `[K]`.
        factors: By which their changes are shrunk `[K]`.
        weights: Weights of the aggregate, once the method has given them.
    """

    aggregation: Aggregation
    accepted: Tensor
    ids: Tensor
    updates: ClientUpdate
    norms: Tensor
    factors: Tensor
    weights: Tensor | Params = field(default_factory=dict)
    _summed: tuple[Tensor | Params, Tensor, State] | None = None  # weights, factors, their sums

    def sum_updates(self, weights: Tensor | Params) -> State:
        """Return the method's sums over the shrunk changes; the last ones are remembered."""
        last = self._summed
        if last is not None and last[0] is weights and last[1] is self.factors:
            return last[2]
        aggregation = self.aggregation
        shrinks = bool((self.factors < 1).any())
        request = SumRequest(
            aggregation.method,
            aggregation.sent_params,
            self.accepted,
            weights,
            self.factors if shrinks else None,
        )
        sums = aggregation.results.partial_sums(request, aggregation.chunks)
        self._summed = weights, self.factors, sums
        return sums

    def limit(self, after: Server, factors: Tensor) -> None:
        """Let clients count less.

        Args:
            after: The server, which logs whose influence was limited.
            factors: Factors `[K]`, at most 1, of the clients' influence.
        """
        if not log_shrunk(after, self.ids, factors):
            return
        method = self.aggregation.method
        if "partial_sums" not in method.overridden_hooks:
            self.weights = scale_weights(self.weights, factors)
            return
        # Other sums than the mean have no weights: what is summed is shrunk.
        self.factors = self.factors * factors
        if not method.capabilities.aggregates_by_sum:
            self.updates = shrink_update(self.updates, self.aggregation.sent_params, factors)

    def influence_limits(self, influence_ratio: float) -> Tensor:
        """Return factors `[K]` that bound weight times norm relative to the cohort."""
        weighs_norms = self.aggregation.bounds.weighs_norms
        sizes = self.norms * self.factors if weighs_norms else torch.ones_like(self.norms)
        return influence_factors(self.weights, sizes, influence_ratio)

    def bounds_opposition(self) -> bool:
        """Return whether changes compare with their mean: enough replies with one weight each.

        A client whose blocks have different weights counts with the largest.
        """
        bounds = self.aggregation.bounds
        if not bounds.weighs_norms or bounds.crowd_ratio == torch.inf:
            return False
        if len(self.norms) < MIN_COHORT or not bool(self.norms.any()):
            return False
        by_name = self.weights.values() if isinstance(self.weights, dict) else (self.weights,)
        if any(weights.dim() != 1 for weights in by_name):
            return False
        values = largest_weights(self.weights).numpy()
        return bool(values.min() >= 0 and values.max() > 0)

    def opposition_limits(self) -> Tensor:
        """Return factors `[K]` that bound how far a client points against the mean of the others.

        All are 1 for a method whose sums have no mean.
        """
        aggregation = self.aggregation
        norms = self.norms * self.factors
        weights = reference_weights(largest_weights(self.weights), norms)
        by_sum = aggregation.method.capabilities.aggregates_by_sum
        if by_sum:
            mean = self.sum_updates(weights).get("mean")
        else:
            mean = weighted_mean(self.updates.params, weights)
        if mean is None:
            return torch.ones_like(self.factors)
        change = mean_change(aggregation.sent_params, mean, weights)
        mean_norm = _total_norm(change)
        shares = weights.double() / weights.double().sum()
        if not may_oppose(shares, norms, mean_norm):
            return torch.ones_like(self.factors)
        if by_sum:
            dots = (
                aggregation.results.update_dots(aggregation.sent_params, change, self.accepted)
                * self.factors
            )
        else:
            dots = update_dots(aggregation.sent_params, self.updates.params, change)
        return opposition_factors(shares, norms, dots, mean_norm)

    def memory_moves(self) -> Tensor:
        """Return how far each shrunk reply moves the server's memory along itself `[K]`."""
        return self.aggregation.diagnostics.memory_moves[self.accepted] * self.factors


def log_shrunk(server: Server, ids: Tensor, factors: Tensor) -> bool:
    """Note who counts less than the method would let it.

    Args:
        server: The server, with the factors so far in `shrunk`.
        ids: Clients `[K]`.
        factors: Factors `[K]` in [0, 1] of their weights or changes.

    Returns:
        Whether anyone does.
    """
    values = factors.numpy()
    rows = np.flatnonzero(values < 1)
    if not len(rows):
        return False
    for client, factor in zip(ids.numpy()[rows].tolist(), values[rows].tolist(), strict=True):
        server.shrunk[client] = server.shrunk.get(client, 1.0) * factor
    return True


def aggregate_with_fault_isolation(
    aggregation: Aggregation, accepted: Tensor, min_replies: int
) -> AggregationOutcome:
    """Aggregate the accepted replies; without those that make the aggregation fail, if any do.

    A reply is blamed if the aggregation fails with it alone, or succeeds as soon as it is left out.

    Args:
        aggregation: The aggregation of this round.
        accepted: Mask `[R]` of the replies that may be used.
        min_replies: The fewest replies from which a model may be made.

    Returns:
        The outcome. Without a reply to blame, a result that is not finite is not adopted.

    Raises:
        Exception: The method's own error, if no reply is to blame for it.
    """
    after, failure = aggregation.attempt(accepted)
    if after is not None:
        return AggregationOutcome(after, accepted)
    for search in (_faulty_alone, _leave_one_out):
        faulty = search(aggregation, accepted) if int(accepted.sum()) > 1 else []
        remaining = accepted.clone()
        remaining[faulty] = False
        if not faulty or int(remaining.sum()) < max(1, min_replies):
            continue
        after, _ = aggregation.attempt(remaining)
        if after is not None:
            reason = f"its reply makes the server fail: {_describe(failure)}"
            return AggregationOutcome(after, remaining, dict.fromkeys(faulty, reason))
    if isinstance(failure, Exception):
        raise failure
    return AggregationOutcome(aggregation.server, torch.zeros_like(accepted), skipped=failure)


def _faulty_alone(aggregation: Aggregation, accepted: Tensor) -> list[int]:
    """Return the replies that fail without any other."""
    faulty = []
    for row in torch.nonzero(accepted).flatten().tolist():
        only_this = torch.arange(len(accepted)) == row
        if aggregation.attempt(only_this)[0] is None:
            faulty.append(row)
    return faulty


def _leave_one_out(aggregation: Aggregation, accepted: Tensor) -> list[int]:
    """Return the first reply without which all others can be aggregated."""
    for row in torch.nonzero(accepted).flatten().tolist():
        others = accepted.clone()
        others[row] = False
        if aggregation.attempt(others)[0] is not None:
            return [row]
    return []


def _params_are_bounded(before: Params, after: Params) -> bool:
    """Return whether no parameter that was replaced is NaN or beyond `MAX_ABS_PARAMETER`."""
    return all(
        bool(value.abs().max() <= MAX_ABS_PARAMETER)
        for name, value in after.items()
        if value.numel() and value is not before.get(name)
    )


def _describe(failure: str | Exception) -> str:
    """Return the text of a failure for the log."""
    if isinstance(failure, str):
        return failure
    return f"{type(failure).__name__}: {failure}"[:200]


def update_norms(before: Params, after: Params, clients: int) -> Tensor:
    """Return the Euclidean norm of each update.

    Args:
        before: The model before training.
        after: Trained models, stacked `[K, ...]`.
        clients: The number K of clients.

    Returns:
        Norms `[K]` in double precision.
    """
    each = [
        _norms_of_stack(after[name], before[name])
        for name in after
        if after[name].is_floating_point()
    ]
    if not each:
        return torch.zeros(clients, dtype=torch.float64)
    norms: Tensor = torch.linalg.vector_norm(torch.stack(each), dim=0)
    return norms


def mean_change(before: Params, mean: Params, weights: Tensor) -> Params:
    """Return the weighted mean of the changes.

    Args:
        before: The model before training.
        mean: The weighted sum of the trained models.
        weights: The weights `[K]`, not negative; not all 0.

    Returns:
        The change of each floating-point parameter.
    """
    total = weights.sum()
    return {
        name: value / total.to(value.dtype) - before[name]
        for name, value in mean.items()
        if value.is_floating_point()
    }


def update_dots(before: Params, after: Params, direction: Params) -> Tensor:
    """Return the inner product of each update with a direction.

    Args:
        before: The model before training.
        after: Trained models, stacked `[K, ...]`.
        direction: A change of the model; parameters that it lacks do not count.

    Returns:
        Inner products `[K]` in double precision.
    """
    each = [_dots_of_stack(after[name], before[name], direction[name]) for name in direction]
    return torch.stack(each).sum(0)


def _dots_of_stack(after: Tensor, before: Tensor, direction: Tensor) -> Tensor:
    """Return the inner products of one parameter."""
    parts = ((some - before).mul_(direction) for some in _cached_parts(after))
    return torch.cat([part.flatten(1).sum(1, dtype=torch.float64) for part in parts])


def extra_norms(update: ClientUpdate, clients: int) -> Tensor:
    """Return the norm `[K]` of the parts of `extra` that have a model's shape."""
    parts = [value for tree in like_params(update).values() for value in tree.values()]
    if not parts:
        return torch.zeros(clients, dtype=torch.float64)
    each = [_norms_of_stack(value, torch.zeros_like(value[0])) for value in parts]
    norms: Tensor = torch.linalg.vector_norm(torch.stack(each), dim=0)
    return norms


def memory_moves(message: ServerMessage, update: ClientUpdate, clients: int) -> Tensor:
    """Return how far `[K]` replies move a memory of the server along its own direction.

    A memory is sent to all clients, and they upload changes of it under the same name.
    """
    moves = torch.zeros(clients, dtype=torch.float64)
    for name, changes in like_params(update).items():
        memory = message.broadcast.get(name)
        if not isinstance(memory, dict):
            continue
        norm = _total_norm(memory)
        if norm > 0:
            zeros = {key: torch.zeros_like(value) for key, value in memory.items()}
            moves += update_dots(zeros, changes, memory) / norm
    return moves


def _total_norm(tree: Params) -> float:
    """Return the Euclidean norm of all tensors together, in double precision."""
    each = [torch.linalg.vector_norm(value, dtype=torch.float64) for value in tree.values()]
    return float(torch.linalg.vector_norm(torch.stack(each)))


def _norms_of_stack(after: Tensor, before: Tensor) -> Tensor:
    """Return the norms of one parameter."""
    changes = (some - before for some in _cached_parts(after))
    norms = [
        torch.linalg.vector_norm(change.flatten(1), dim=1, dtype=torch.float64)
        for change in changes
    ]
    return torch.cat(norms)


def _cached_parts(stack: Tensor) -> tuple[Tensor, ...]:
    """Split one parameter `[K, ...]` into as many clients at once as the cache holds."""
    numbers = math.prod(stack.shape[1:])
    parts: tuple[Tensor, ...] = stack.split(max(1, CACHED_NUMBERS // max(1, numbers)))
    return parts


def norm_outliers(
    norms: Tensor,
    step_budgets: Callable[[], Tensor],
    accepted: Tensor,
    max_ratio: float = COMMON_START_BOUNDS.norm_ratio,
) -> dict[int, str]:
    """Find updates that are much larger than nearly all others, also relative to their steps.

    A client with many more rows than others moves further, and one with a smaller learning rate
    moves further for its steps: neither alone is a reason. The bound is far above the differences
    between honest clients, so that nothing changes where nobody attacks.

    Args:
        norms: Update norms `[R]`.
        step_budgets: Computes the steps times the learning rate that the server asked of each
            client, `[R]`; only called if a norm is beyond its bound.
        accepted: Mask `[R]` of the replies to compare.
        max_ratio: The largest allowed ratio to the trimmed maximum.

    Returns:
        The reason by row of an outlier; empty for small cohorts.
    """
    is_accepted = accepted.numpy()
    if is_accepted.sum() < MIN_COHORT:
        return {}
    ratios = _ratio_to_trimmed_max(norms.numpy(), is_accepted)
    is_outlier = is_accepted & (ratios > max_ratio)
    if not is_outlier.any():
        return {}
    ratios_per_step = _ratio_to_trimmed_max((norms / step_budgets()).numpy(), is_accepted)
    is_outlier &= ratios_per_step > max_ratio
    return {
        row: f"its change is {ratios[row]:.3g} times as long as nearly all others'"
        for row in np.flatnonzero(is_outlier).tolist()
    }


def _ratio_to_trimmed_max(values: Floats, accepted: NDArray[np.bool_]) -> Floats:
    """Return each value relative to the trimmed maximum of the accepted ones."""
    usual = trimmed_max(values[accepted])
    return values / usual if usual > 0 else np.zeros_like(values)


def rows_are_finite(tree: object, clients: int, checked: Iterable[int] = ()) -> Tensor:
    """Return for each client whether all of its numbers are finite.

    A sum is finite only if all of its terms are, so that one pass decides for nearly all tensors.

    Args:
        tree: A tree of tensors `[K, ...]`.
        clients: The number K of clients.
        checked: Addresses of tensors that are checked elsewhere.

    Returns:
        A mask `[K]`.
    """
    is_finite = torch.ones(clients, dtype=torch.bool)
    seen = set(checked)  # an uploaded tensor is often part of the client state, too
    for value in leaves(tree):
        if value.is_floating_point() and value.data_ptr() not in seen:
            seen.add(value.data_ptr())
            is_shared = value.stride(0) == 0  # one tensor of all clients
            rows = value[:1] if is_shared else value
            rows = rows.reshape(len(rows), -1)
            row_is_finite = torch.isfinite(rows.sum(1))
            # A sum of large finite numbers may overflow: look at each number then.
            is_finite &= row_is_finite if bool(row_is_finite.all()) else torch.isfinite(rows).all(1)
    return is_finite


def _state_is_finite(before: State, after: State) -> bool:
    """Return whether no number became infinite or NaN.

    A number that was so before the round is intended: an entry that nobody has set yet.
    """
    if not after:
        return True
    known = named_leaves(before)
    for path, value in named_leaves(after).items():
        if value.is_floating_point() and not bool(torch.isfinite(value.sum())):
            is_intended = torch.isinf(value)
            old = known.get(path)
            if old is not None and old.shape == value.shape:
                is_intended = ~torch.isfinite(old)
            if not bool((torch.isfinite(value) | is_intended).all()):
                return False
    return True
