"""Secure sums of 100 clients: bytes and seconds of every phase; with everybody, and with a tenth lost before its words.

All clients and the server are in this process, one after another: a client's seconds are the mean of all, and in a
deployment clients work at the same time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from benchmarks.lab.provenance import measured
from equipoise.flower.masks import Member, threshold, unmask

T = TypeVar("T")
ABOUT = "benchmark 1"


class Stopwatch:
    """CPU seconds by what they were spent on."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def __call__(self, what: str, work: Callable[[], T]) -> T:
        began = time.process_time()
        result = work()
        self.spent[what] = self.spent.get(what, 0.0) + time.process_time() - began
        return result


def once(clients: int, words: int, lost: int) -> dict[str, Any]:
    draw, timed = np.random.default_rng(0), Stopwatch()
    parts = [draw.integers(0, 2**64, words, np.uint64) for _ in range(clients)]
    members = [Member(client, ABOUT) for client in range(clients)]
    published = {member.client: timed("keys", member.keys) for member in members}
    letters = [timed("share", lambda member=member: member.share(published)) for member in members]  # type: ignore[misc]
    masked = []
    for client in range(clients - lost):
        post = {by: letters[by][client] for by in range(clients) if by != client}
        masked.append(timed("mask", lambda client=client, post=post: members[client].mask(post, parts[client])))  # type: ignore[misc]
    replied = list(range(clients - lost))
    shares = {id: timed("reveal", lambda id=id: members[id].reveal(replied)) for id in replied}  # type: ignore[misc]

    def unmasked() -> Any:
        return unmask(np.add.reduce(masked), published, range(clients), replied, shares, ABOUT)

    assert (timed("unmask", unmasked) == np.add.reduce(parts[: clients - lost])).all()
    own = {phase: timed.spent[phase] / clients for phase in ("keys", "share", "mask", "reveal")}
    letter = len(letters[0][1])
    return {
        "lost": lost,
        "bytes_up_per_client": {
            **{"keys": 64, "share": letter * (clients - 1), "mask": 8 * words, "reveal": 16 * clients},
            **{"plain_float32": 4 * words},
        },
        "bytes_down_per_client": {"keys": 64 * clients, "letters": letter * (clients - 1), "plain_float32": 4 * words},
        "seconds_per_client": {phase: round(seconds, 4) for phase, seconds in own.items()},
        "seconds_server": round(timed.spent["unmask"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--words", type=int, default=10_000, help="numbers of a client's part")
    given = parser.parse_args()
    runs = [once(given.clients, given.words, lost) for lost in (0, given.clients // 10)]
    about = {"clients": given.clients, "words": given.words, "threshold": threshold(given.clients)}
    measured("secure", {**about, "runs": runs})


if __name__ == "__main__":
    main()
