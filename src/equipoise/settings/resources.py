"""Limits on the resources of a run. This module does not import PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.config.schema import Options, option


@dataclass(frozen=True)
class ResourceConfig(Options):
    """Resource limits. They do not affect results and are not stored in config.json."""

    processes: int = option(
        0,
        "processes that share the clients of a round, with one result; 0: one per core where that "
        "saves time",
        low=0,
        high=1024,
    )
    client_memory_gib: float = option(
        4.0,
        "GiB of memory of each process for what its clients hold; what does not fit is kept in "
        "files",
        low=0,
        high=2**20,
    )
