"""Long checks go on where the last sitting ended: what each finds is added up in a file.

The file also names the commit of each sitting; those before this was recorded have none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TypeVar

from benchmarks.lab.provenance import provenance


@dataclass
class Found:
    """What all sittings found together; the first field counts what there should be so many of."""

    def in_words(self) -> str:
        raise NotImplementedError

    @property
    def failed(self) -> bool:
        """Whether a single one of them did."""
        raise NotImplementedError


F = TypeVar("F", bound=Found)


def sit(
    kind: type[F],
    check: Callable[[int, float, int], F],
    wanted: int,
    minutes: float,
    about: str | None,
) -> None:
    """The command line of a check, which is given how many are left, minutes, and a seed that no
    sitting had before.
    """
    amount = fields(kind)[0].name
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(f"--{amount}", type=int, default=wanted)
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument(
        "--add", type=Path, metavar="FILE", help="add to what this file says of earlier sittings"
    )
    chosen = parser.parse_args()
    told = json.loads(chosen.add.read_text()) if chosen.add and chosen.add.exists() else {}
    before = {name: told.get(name, 0) for name in asdict(kind())}
    now = check(getattr(chosen, amount) - before[amount], chosen.minutes, before["sittings"])
    total = kind(**{name: value + before[name] for name, value in asdict(now).items()})
    if chosen.add:
        commits = [*told.get("commits", []), provenance()["commit"]]
        chosen.add.write_text(json.dumps({**asdict(total), "commits": commits}) + "\n")
    print(total.in_words())
    sys.exit(int(total.failed))
