"""From a run's round logs to its summary: last and best-by-validation figures, convergence, totals."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from equipoise.runtime.round import RoundLog

NAMED = ("global", "received", "trained", "personal")
WINDOW = 5  # evaluations that are averaged to judge convergence
TOLERANCE = 0.005  # half a point


def validation_score(log: RoundLog, headline: str, higher_is_better: bool) -> float | None:
    """What "best" means: the global model on public data and the personal ones on their own count alike."""
    named = [log.get("val", {}).get(name) for name in ("global", "personal")]
    values = [score[headline] for score in named if score and score.get(headline) is not None]
    if not values:
        return None
    return fmean(values) if higher_is_better else -fmean(values)


def convergence_round(logs: Sequence[RoundLog], name: str, headline: str, higher_is_better: bool) -> int | None:
    """The first round from which a named score has stopped improving.

    That is: the first evaluation whose mean over the last five is within half a point of the best such mean.
    """
    points = [(log["round"], log[name][headline]) for log in logs if log.get(name) and log[name][headline] is not None]
    if len(points) < WINDOW:
        return None
    sign = 1.0 if higher_is_better else -1.0
    means = [sign * fmean(value for _, value in points[i - WINDOW + 1 : i + 1]) for i in range(WINDOW - 1, len(points))]
    first = next(i for i, mean in enumerate(means) if mean >= max(means) - TOLERANCE)
    return int(points[first + WINDOW - 1][0])


def summarise(about: dict[str, Any], logs: Sequence[RoundLog], headline: str, higher_is_better: bool) -> dict[str, Any]:
    """``about`` names the run; ``logs`` are all its rounds."""
    last = logs[-1]
    evaluated = [log for log in logs if "trained" in log]
    scored = [(validation_score(log, headline, higher_is_better), log) for log in evaluated]
    best = max(
        ((score, log) for score, log in scored if score is not None), key=lambda pair: pair[0], default=(None, last)
    )[1]
    return {
        **about,
        "rounds": last["round"],
        "stopped": last.get("stop"),
        **{name: last.get(name) for name in NAMED},
        "best_round": best["round"],
        "best": {name: best.get(name) for name in NAMED},
        "converged_round": {
            name: convergence_round(evaluated, name, headline, higher_is_better) for name in ("global", "personal")
        },
        "clients_seen": last["seen"],
        "dropped_updates": sum(len(log["dropped"]) for log in logs),
        "bytes": {way: sum(log["bytes"][way] for log in logs) for way in ("up", "down")},
        "seconds": sum(log["seconds"] for log in logs),
        **({"privacy": last["privacy"]} if "privacy" in last else {}),
    }
