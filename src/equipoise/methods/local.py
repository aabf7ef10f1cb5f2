"""Local training: the baseline without communication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.core import Method


@dataclass(frozen=True)
class Local(Method):
    """Let every client go on training its own model; no block is sent."""

    name: ClassVar[str] = "local"
    family: ClassVar[str] = "second-model"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ()
    needs_previous_model: ClassVar[bool] = True
