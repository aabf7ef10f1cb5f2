"""Local training: the baseline without communication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.core import Capabilities, Method


@dataclass(frozen=True)
class Local(Method):
    """Let every client go on training its own model; no block is sent."""

    name: ClassVar[str] = "local"
    family: ClassVar[str] = "second-model"
    capabilities: ClassVar[Capabilities] = Capabilities(
        needs_previous_model=True, aggregates_by_sum=True
    )
    default_shared_blocks: ClassVar[tuple[str, ...]] = ()
