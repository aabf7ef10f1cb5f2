"""Which replies the server takes, and whether what it makes of them is sound: what is not is never adopted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equipoise.core import ClientResult, ClientUpdate, Method, Server
from equipoise.core.report_validation import MIN_COHORT, trimmed_max, validate_reports
from equipoise.utils.errors import UsageError
from equipoise.utils.pytree import Params, State, index, leaves

MAX_NORM_RATIO = 5.0  # as long as nearly all others' may a change be
MAX_NORM_RATIO_STATEFUL = (
    8.0  # the same where clients keep models of their own, from which they start
)
MAX_INPUTS_AT_ONCE = 2**20
MAX_ABS_PARAMETER = 1e10  # of a parameter: a model with such numbers is of no use to anybody
Sums = Callable[[Tensor, Tensor | Params], State]
"""From the replies that count (booleans) and their weights to the method's sums over them."""


@dataclass
class UpdateDiagnostics:
    """What must be known of a stack of replies before any of them is used, wherever they are."""

    is_finite: Tensor
    norms: Tensor
    """The length of each change."""
    violations: dict[int, str]
    """Rows that report numbers out of their ranges."""

    @classmethod
    def of(cls, method: Method, sent: Params, reply: ClientResult) -> UpdateDiagnostics:
        up, clients = reply.update, len(leaves(reply)[0])
        return cls(
            rows_are_finite((up, reply.client_state), clients),
            update_norms(sent, up.params, clients),
            validate_reports(method.report_ranges, up),
        )

    @classmethod
    def joined(cls, parts: list[UpdateDiagnostics]) -> UpdateDiagnostics:
        """Of one stack from several, in their order."""
        firsts = accumulate((len(part.is_finite) for part in parts), initial=0)
        why = {
            first + place: text
            for first, part in zip(firsts, parts, strict=False)
            for place, text in part.violations.items()
        }
        return cls(
            torch.cat([part.is_finite for part in parts]),
            torch.cat([part.norms for part in parts]),
            why,
        )


@dataclass
class AggregationOutcome:
    """``server`` after the round, or as it was; ``rows``: whose reply counted; ``blamed``: whose did not, and why."""

    server: Server
    rows: Tensor
    blamed: dict[int, str] = field(default_factory=dict)
    skipped: str | None = None


def aggregate_with_fault_isolation(
    method: Method,
    server: Server,
    ids: Tensor,
    updates: ClientUpdate,
    rows: Tensor,
    fewest: int,
    sums: Sums,
) -> AggregationOutcome:
    """Decision 3 on the replies of ``rows`` (booleans); on what is left of them if some make it fail.

    An error or a result that is not finite is blamed on those replies that cause it alone, or without which it does
    not occur. If there are none, an error is the method's own and raised; a result is not adopted.
    """
    attempt = partial(_try_aggregate, method, server, ids, updates, sums)
    after, wrong = attempt(rows)
    if after is not None:
        return AggregationOutcome(after, rows)
    count = int(rows.sum())
    for search in (_faulty_alone, _leave_one_out):
        found = search(attempt, rows) if count > 1 else []
        rest = rows.clone()
        rest[found] = False
        if found and int(rest.sum()) >= max(1, fewest):
            after, _ = attempt(rest)
            if after is not None:
                return AggregationOutcome(
                    after,
                    rest,
                    dict.fromkeys(found, f"its reply makes the server fail: {_words(wrong)}"),
                )
    if isinstance(wrong, Exception):
        raise wrong
    return AggregationOutcome(server, torch.zeros_like(rows), skipped=wrong)


def update_norms(before: Params, after: Params, clients: int) -> Tensor:
    """How far each model of a stack is from the one before."""
    each = [
        _norms_of_stack(after[name], before[name])
        for name in after
        if after[name].is_floating_point()
    ]
    if not each:
        return torch.zeros(clients, dtype=torch.float64)
    whole: Tensor = torch.linalg.vector_norm(torch.stack(each), dim=0)
    return whole


def _norms_of_stack(after: Tensor, before: Tensor) -> Tensor:
    """Of a bounded number of clients at once: differences in double precision take three times their models' memory."""
    at_once = max(1, MAX_INPUTS_AT_ONCE // max(1, before.numel()))
    moves = (some - before for some in after.split(at_once))
    return torch.cat(
        [torch.linalg.vector_norm(move.flatten(1), dim=1, dtype=torch.float64) for move in moves]
    )


def norm_outliers(
    long: Tensor, paths: Tensor, rows: Tensor, times: float = MAX_NORM_RATIO
) -> dict[int, str]:
    """Those of ``rows`` (booleans) whose change is much longer than nearly all others', also for the steps behind it.

    ``paths``: steps times rate of each client. A client with many more rows than others moves further, one with a
    smaller rate moves further for its steps: neither alone is a reason. The bound is far above what honest clients
    differ by in both, so that nothing changes where nobody attacks.
    """
    if int(rows.sum()) < MIN_COHORT:
        return {}
    much = [_times_usual(values, rows) for values in (long, long / paths)]
    found = torch.nonzero(rows & (much[0] > times) & (much[1] > times)).flatten().tolist()
    return {
        row: f"its change is {float(much[0][row]):.3g} times as long as nearly all others'"
        for row in found
    }


def _times_usual(values: Tensor, rows: Tensor) -> Tensor:
    """How many times the longest of nearly all each is."""
    usual = trimmed_max(values[rows])
    return values / usual if usual > 0 else torch.zeros_like(values)


def rows_are_finite(tree: object, clients: int) -> Tensor:
    """Per client: whether every number is finite. A sum is finite only if all of its terms are: one pass decides."""
    fine = torch.ones(clients, dtype=torch.bool)
    seen: set[int] = set()  # what is uploaded is often also what is held
    for value in leaves(tree):
        if value.is_floating_point() and value.data_ptr() not in seen:
            seen.add(value.data_ptr())
            rows = value.reshape(clients, -1)
            whole = torch.isfinite(rows.sum(1))
            fine &= whole if bool(whole.all()) else torch.isfinite(rows).all(1)
    return fine


def _try_aggregate(
    method: Method, server: Server, ids: Tensor, updates: ClientUpdate, sums: Sums, rows: Tensor
) -> tuple[Server | None, str | Exception]:
    """The server after these replies, or what is wrong; the one that is given stays as it is."""
    after = copy.copy(server)
    after.logged = dict(server.logged)
    if method.aggregates_by_sum:
        # Parameters stay where they were computed, perhaps in other processes, and are summed there.
        updates = ClientUpdate({}, metrics=updates.metrics)
        after.sum_updates = partial(sums, rows)
    if not bool(rows.all()):
        ids = ids[rows]
        updates = index(updates, rows)
    try:
        weights, after.state = method.aggregation_weights(after, ids, updates)
        after.params, after.state = method.aggregate(after, ids, updates, weights)
        after.state = method.learn(after, ids, updates)
    except UsageError:
        raise
    except Exception as error:
        return None, error
    after.sum_updates = None
    if any(
        not bool(value.abs().max() <= MAX_ABS_PARAMETER)
        for value in after.params.values()
        if value.numel()
    ):
        return None, "the aggregate is not finite, or has exploded"
    if not _state_is_finite(server.state, after.state):
        return None, "the server's state is not finite any more"
    return after, ""


def _state_is_finite(before: State, after: State) -> bool:
    """Whether nothing became infinite or NaN; what was so before is meant (a record that nobody has set yet)."""
    if not after:
        return True
    known = dict(pytree.tree_flatten_with_path(before)[0])
    for path, value in pytree.tree_flatten_with_path(after)[0]:
        if value.is_floating_point() and not bool(torch.isfinite(value.sum())):
            old = known.get(path)
            meant = (
                ~torch.isfinite(old)
                if old is not None and old.shape == value.shape
                else torch.isinf(value)
            )
            if not bool((torch.isfinite(value) | meant).all()):
                return False
    return True


Attempt = Callable[[Tensor], tuple[Server | None, str | Exception]]


def _faulty_alone(attempt: Attempt, rows: Tensor) -> list[int]:
    """Replies that fail without any other."""
    each = [torch.arange(len(rows)) == place for place in torch.nonzero(rows).flatten().tolist()]
    return [int(one.int().argmax()) for one in each if attempt(one)[0] is None]


def _leave_one_out(attempt: Attempt, rows: Tensor) -> list[int]:
    """The reply without which all others do well."""
    for place in torch.nonzero(rows).flatten().tolist():
        others = rows.clone()
        others[place] = False
        if attempt(others)[0] is not None:
            return [place]
    return []


def _words(wrong: str | Exception) -> str:
    return wrong if isinstance(wrong, str) else f"{type(wrong).__name__}: {wrong}"[:200]
