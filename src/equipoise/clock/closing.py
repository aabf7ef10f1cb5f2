"""The queue of events: who is under way, who comes first, and when a round of the server ends."""

from __future__ import annotations

import math

import numpy as np

from equipoise.clock.fleet import Bools, Floats
from equipoise.core.trees import Ints


def end_of_round(now: float, ids: Ints, at: Floats, lost: Bools, wanted: int, within: float = math.inf) -> tuple[float, Bools]:
    """When the round that began ``now`` ends, and whose event has come by then.

    It ends with the reply that makes ``wanted`` of them, or after ``within`` seconds; or, when fewer than that can
    still come, with the last event of all. Of two events at one time, that of the lower client is first.

    Arguments:
        now: the clock at the start of the round.
        ids: the clients that are under way.
        at: when each of them replies, or is lost.
        lost: who is lost.
        wanted: how many replies end the round.
        within: seconds after which it ends in any case.
    """
    last = now + within
    order = np.lexsort((ids, at))
    replies = order[~lost[order]]
    if len(replies) >= wanted:
        final = replies[wanted - 1]
        come = np.zeros(len(ids), bool)
        come[order[: int(np.flatnonzero(order == final)[0]) + 1]] = True
        end = float(at[final])
    else:
        come, end = np.ones(len(ids), bool), max(now, float(at.max(initial=now)))
    if end <= last:
        return max(now, end), come
    return last, np.asarray(at <= last)
