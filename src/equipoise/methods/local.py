"""Local training: the baseline that never communicates, and that published tables hide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.core import Method


@dataclass(frozen=True)
class Local(Method):
    """Each client goes on with its own model; no block travels."""

    name: ClassVar[str] = "local"
    family: ClassVar[str] = "second-model"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ()
    needs_previous_model: ClassVar[bool] = True
