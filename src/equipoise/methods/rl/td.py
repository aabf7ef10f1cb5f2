"""Independent TD learning: every agent evaluates its policy alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.methods.rl.linear_rep import LinearRepresentation


@dataclass(frozen=True)
class TD(LinearRepresentation):
    """V^i(s) = Phi_i(s) theta_i; nothing travels."""

    name: ClassVar[str] = "td"
    learns: ClassVar[str] = "v"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ()
