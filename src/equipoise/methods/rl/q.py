"""Independent Q-learning: every agent learns alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from equipoise.methods.rl.linear_rep import LinearControl


@dataclass(frozen=True)
class IndependentQ(LinearControl):
    """Q^i(s,a) = Phi_i(s,a) theta_i; nothing travels."""

    name: ClassVar[str] = "q"
    default_shared_blocks: ClassVar[tuple[str, ...]] = ()
