"""What a run may use of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.core.options import Options, option


@dataclass(frozen=True)
class Means(Options):
    """None of it changes the result, so it is no part of a run's config."""

    processes: int = option(1, "processes that share the clients of a round; any number gives the same result", low=1)
    state_memory: float = option(
        4.0, "GiB of memory of each process for what its clients hold; what does not fit is kept in files", low=0
    )
