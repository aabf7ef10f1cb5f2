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

from equipoise.contract import Method, Reply, Server, Up
from equipoise.contract.ranges import ENOUGH, nearly_most, reasons
from equipoise.core.errors import UsageError
from equipoise.core.trees import State, Tree, leaves, row

TIMES = 5.0  # as long as nearly all others' may a change be
DRIFTED = 8.0  # the same where clients keep models of their own, from which they start
NUMBERS_AT_ONCE = 2**20
LARGEST = 1e10  # of a parameter: a model with such numbers is of no use to anybody
Sums = Callable[[Tensor, Tensor | Tree], State]
"""From the replies that count (booleans) and their weights to the method's sums over them."""


@dataclass
class Facts:
    """What must be known of a stack of replies before any of them is used, wherever they are."""

    finite: Tensor
    long: Tensor
    """The length of each change."""
    reasons: dict[int, str]
    """Rows that report numbers out of their ranges."""

    @classmethod
    def of(cls, method: Method, sent: Tree, reply: Reply) -> Facts:
        up, clients = reply.up, len(leaves(reply)[0])
        return cls(finite((up, reply.held), clients), lengths(sent, up.params, clients), reasons(method.reports, up))

    @classmethod
    def joined(cls, parts: list[Facts]) -> Facts:
        """Of one stack from several, in their order."""
        firsts = accumulate((len(part.finite) for part in parts), initial=0)
        why = {
            first + place: text
            for first, part in zip(firsts, parts, strict=False)
            for place, text in part.reasons.items()
        }
        return cls(torch.cat([part.finite for part in parts]), torch.cat([part.long for part in parts]), why)


@dataclass
class Adopted:
    """``server`` after the round, or as it was; ``rows``: whose reply counted; ``blamed``: whose did not, and why."""

    server: Server
    rows: Tensor
    blamed: dict[int, str] = field(default_factory=dict)
    skipped: str | None = None


def adopt(method: Method, server: Server, ids: Tensor, up: Up, rows: Tensor, fewest: int, sums: Sums) -> Adopted:
    """Decision 3 on the replies of ``rows`` (booleans); on what is left of them if some make it fail.

    An error or a result that is not finite is blamed on those replies that cause it alone, or without which it does
    not occur. If there are none, an error is the method's own and raised; a result is not adopted.
    """
    attempt = partial(_attempt, method, server, ids, up, sums)
    after, wrong = attempt(rows)
    if after is not None:
        return Adopted(after, rows)
    count = int(rows.sum())
    for search in (_alone, _without):
        found = search(attempt, rows) if count > 1 else []
        rest = rows.clone()
        rest[found] = False
        if found and int(rest.sum()) >= max(1, fewest):
            after, _ = attempt(rest)
            if after is not None:
                return Adopted(after, rest, dict.fromkeys(found, f"its reply makes the server fail: {_words(wrong)}"))
    if isinstance(wrong, Exception):
        raise wrong
    return Adopted(server, torch.zeros_like(rows), skipped=wrong)


def lengths(before: Tree, after: Tree, clients: int) -> Tensor:
    """How far each model of a stack is from the one before."""
    each = [_long(after[name], before[name]) for name in after if after[name].is_floating_point()]
    if not each:
        return torch.zeros(clients, dtype=torch.float64)
    whole: Tensor = torch.linalg.vector_norm(torch.stack(each), dim=0)
    return whole


def _long(after: Tensor, before: Tensor) -> Tensor:
    """Of a bounded number of clients at once: differences in double precision take three times their models' memory."""
    at_once = max(1, NUMBERS_AT_ONCE // max(1, before.numel()))
    moves = (some - before for some in after.split(at_once))
    return torch.cat([torch.linalg.vector_norm(move.flatten(1), dim=1, dtype=torch.float64) for move in moves])


def too_long(long: Tensor, paths: Tensor, rows: Tensor, times: float = TIMES) -> dict[int, str]:
    """Those of ``rows`` (booleans) whose change is much longer than nearly all others', also for the steps behind it.

    ``paths``: steps times rate of each client. A client with many more rows than others moves further, one with a
    smaller rate moves further for its steps: neither alone is a reason. The bound is far above what honest clients
    differ by in both, so that nothing changes where nobody attacks.
    """
    if int(rows.sum()) < ENOUGH:
        return {}
    much = [_times_usual(values, rows) for values in (long, long / paths)]
    found = torch.nonzero(rows & (much[0] > times) & (much[1] > times)).flatten().tolist()
    return {row: f"its change is {float(much[0][row]):.3g} times as long as nearly all others'" for row in found}


def _times_usual(values: Tensor, rows: Tensor) -> Tensor:
    """How many times the longest of nearly all each is."""
    usual = nearly_most(values[rows])
    return values / usual if usual > 0 else torch.zeros_like(values)


def finite(tree: object, clients: int) -> Tensor:
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


def _attempt(
    method: Method, server: Server, ids: Tensor, up: Up, sums: Sums, rows: Tensor
) -> tuple[Server | None, str | Exception]:
    """The server after these replies, or what is wrong; the one that is given stays as it is."""
    after = copy.copy(server)
    after.notes = dict(server.notes)
    if method.summed:
        up = Up({}, metrics=up.metrics)  # all that there is, where uploads stay with other processes
    if not bool(rows.all()):
        ids, up = ids[rows], row(up, rows)
    try:
        weights, after.state = method.weigh(after, ids, up)
        if method.summed:
            after.params, after.state = method.step(after, sums(rows, weights))
        else:
            after.params, after.state = method.aggregate(after, ids, up, weights)
    except UsageError:
        raise
    except Exception as error:
        return None, error
    if any(not bool(value.abs().max() <= LARGEST) for value in after.params.values() if value.numel()):
        return None, "the aggregate is not finite, or has exploded"
    if not _sound(server.state, after.state):
        return None, "the server's state is not finite any more"
    return after, ""


def _sound(before: State, after: State) -> bool:
    """Whether nothing became infinite or NaN; what was so before is meant (a record that nobody has set yet)."""
    known = dict(pytree.tree_flatten_with_path(before)[0])
    for path, value in pytree.tree_flatten_with_path(after)[0]:
        if value.is_floating_point() and not bool(torch.isfinite(value.sum())):
            old = known.get(path)
            meant = ~torch.isfinite(old) if old is not None and old.shape == value.shape else torch.isinf(value)
            if not bool((torch.isfinite(value) | meant).all()):
                return False
    return True


Attempt = Callable[[Tensor], tuple[Server | None, str | Exception]]


def _alone(attempt: Attempt, rows: Tensor) -> list[int]:
    """Replies that fail without any other."""
    each = [torch.arange(len(rows)) == place for place in torch.nonzero(rows).flatten().tolist()]
    return [int(one.int().argmax()) for one in each if attempt(one)[0] is None]


def _without(attempt: Attempt, rows: Tensor) -> list[int]:
    """The reply without which all others do well."""
    for place in torch.nonzero(rows).flatten().tolist():
        others = rows.clone()
        others[place] = False
        if attempt(others)[0] is not None:
            return [place]
    return []


def _words(wrong: str | Exception) -> str:
    return wrong if isinstance(wrong, str) else f"{type(wrong).__name__}: {wrong}"[:200]
