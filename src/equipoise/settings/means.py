"""What a run may use of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.core.options import Options, option


@dataclass(frozen=True)
class ResourceConfig(Options):
    """None of it changes the result, so it is no part of a run's config."""

    processes: int = option(
        0, "processes that share the clients of a round, with one result; 0: one per core where that saves time", low=0
    )
    client_memory_gib: float = option(
        4.0, "GiB of memory of each process for what its clients hold; what does not fit is kept in files", low=0
    )
