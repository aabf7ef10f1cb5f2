"""Secure sums of 100 clients: bytes and seconds of every phase; with everybody, and with a tenth
lost before its words.

All clients and the server are in this process, one after another: a client's seconds are the mean
of all, and in a deployment clients work at the same time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from benchmarks.lab.provenance import measured
from equipoise.flower.secagg_protocol import PublicKeys, SecAggClient, Words, threshold, unmask

T = TypeVar("T")
ABOUT = "benchmark 1"


class Stopwatch:
    """CPU seconds by what they were spent on."""

    def __init__(self, before: Mapping[str, float] = MappingProxyType({})) -> None:
        self.spent = dict(before)

    def __call__(self, what: str, work: Callable[[], T]) -> T:
        began = time.process_time()
        result = work()
        self.spent[what] = self.spent.get(what, 0.0) + time.process_time() - began
        return result


def runs(clients: int, words: int) -> list[dict[str, Any]]:
    """Keys and letters once; from there on with everybody, and without a tenth."""
    draw, timed = np.random.default_rng(0), Stopwatch()
    parts = [draw.integers(0, 2**64, words, np.uint64) for _ in range(clients)]
    members = [SecAggClient(client, ABOUT) for client in range(clients)]
    published = {member.client: timed("keys", member.public_keys) for member in members}
    letters = [timed("share", partial(member.share_secrets, published)) for member in members]
    kept = [member.to_json() for member in members]
    return [
        once(
            [SecAggClient.from_json(text) for text in kept],
            parts,
            published,
            letters,
            lost,
            Stopwatch(timed.spent),
        )
        for lost in (0, clients // 10)
    ]


def once(
    members: list[SecAggClient],
    parts: list[Words],
    published: dict[int, PublicKeys],
    letters: list[dict[int, bytes]],
    lost: int,
    timed: Stopwatch,
) -> dict[str, Any]:
    clients, words = len(members), len(parts[0])
    replied = list(range(clients - lost))
    masked = []
    for client in replied:
        post = {by: letters[by][client] for by in range(clients) if by != client}
        masked.append(timed("mask", partial(members[client].mask, post, parts[client])))
    shares = {
        client: timed("reveal", partial(members[client].reveal, replied)) for client in replied
    }
    added = np.add.reduce(masked)
    total = timed(
        "unmask", partial(unmask, added, published, range(clients), replied, shares, ABOUT)
    )
    assert (total == np.add.reduce(parts[: clients - lost])).all()
    letter, float32 = len(letters[0][1]), 4 * words
    up = {"keys": 64, "share": letter * (clients - 1), "mask": 8 * words, "reveal": 16 * clients}
    each = {"keys": clients, "share": clients, "mask": len(replied), "reveal": len(replied)}
    return {
        "lost": lost,
        "bytes_up_per_client": {**up, "plain_float32": float32},
        "bytes_down_per_client": {
            "keys": 64 * clients,
            "letters": letter * (clients - 1),
            "plain_float32": float32,
        },
        "cpu_seconds_per_client": {
            phase: round(timed.spent[phase] / count, 4) for phase, count in each.items()
        },
        "cpu_seconds_server": round(timed.spent["unmask"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--words", type=int, default=10_000, help="numbers of a client's part")
    given = parser.parse_args()
    about = {"clients": given.clients, "words": given.words, "threshold": threshold(given.clients)}
    measured("secure", {**about, "runs": runs(given.clients, given.words)})


if __name__ == "__main__":
    main()
